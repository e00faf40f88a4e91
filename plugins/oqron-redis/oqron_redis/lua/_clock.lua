-- The instant of this step, by the server's clock, in milliseconds.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

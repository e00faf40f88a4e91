-- See whether a queue has work, and ask to be told if it has none.
-- KEYS: ready, delayed, leased, paused, wake
-- ARGV: for how many ms to be told, 0 for not at all
-- Answer: 1 there is work, 0 there is none; ms until something is due or lapses, -1 for never

local paused = redis.call('EXISTS', KEYS[4]) == 1
local soonest = -1
if not paused then
  if redis.call('EXISTS', KEYS[1]) == 1 then return {1, 0} end
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  for i = 2, 3 do
    local first = redis.call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')
    if first[2] then
      local left = tonumber(first[2]) - now
      if left <= 0 then return {1, 0} end
      if soonest < 0 or left < soonest then soonest = left end
    end
  end
end
if ARGV[1] ~= '0' then
  -- A write that frees memory lets the next pass under `maxmemory`: who has nothing to do
  -- must be able to wait.
  redis.call('DEL', KEYS[5])
  redis.call('SET', KEYS[5], '1', 'PX', ARGV[1])
end
return {0, soonest}

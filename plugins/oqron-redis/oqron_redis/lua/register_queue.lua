-- Remember that a queue is used, where the registry lives in another slot.
-- KEYS: registry
-- ARGV: queue

local clock = redis.call('TIME')
redis.call('ZADD', KEYS[1], clock[1] * 1000 + math.floor(clock[2] / 1000), ARGV[1])
return 1

-- Take a queue that is empty and not paused out of the registry.
-- KEYS: registry, and the ids and the paused mark unless they live in other slots
-- ARGV: queue, and the ms since the epoch before which it must have been used last
-- Answer: 1 if it was taken out

if KEYS[2] and redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then return 0 end
local seen = redis.call('ZSCORE', KEYS[1], ARGV[1])
if seen and tonumber(seen) <= tonumber(ARGV[2]) then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
return 0

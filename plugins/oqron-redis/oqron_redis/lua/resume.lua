-- Allow claims again, and wake who waits.
-- KEYS: paused, wake
-- ARGV: channel, queue

redis.call('DEL', KEYS[1])
if redis.call('DEL', KEYS[2]) == 1 then
  redis.call('PUBLISH', ARGV[1], '\0' .. ARGV[2])
end
return 1

-- Count the members of ranges of indexes, and what has expired.
-- KEYS: expiry index, then the index of each range
-- ARGV: of each range its first and last member as ZLEXCOUNT takes them
-- Answer: how many records have expired; then the count of each range

-- needs: _clock
local answer = {redis.call('ZCOUNT', KEYS[1], '-inf', now)}
for k = 2, #KEYS do
  answer[k] = redis.call('ZLEXCOUNT', KEYS[k], ARGV[2 * k - 3], ARGV[2 * k - 2])
end
return answer

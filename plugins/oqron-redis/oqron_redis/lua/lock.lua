-- Take a lock that nobody holds.
-- KEYS: lock, token counter
-- ARGV: owner, lease in ms, ttl of the counter in ms
-- Answer: token and expiry, or nil where it is held

-- needs: _clock
local held = redis.call('GET', KEYS[1])
if held then
  local expires = string.match(held, '^%d+|(%d+)|')
  if expires and tonumber(expires) > now then return false end
end
-- A counter that was lost goes on from the clock in microseconds.
local token = clock[1] * 1000000 + clock[2]
local last = redis.call('GET', KEYS[2])
if last and tonumber(last) >= token then token = tonumber(last) + 1 end
local token_text = string.format('%.0f', token)
local expires = string.format('%.0f', now + tonumber(ARGV[2]))
redis.call('SET', KEYS[1], token_text .. '|' .. expires .. '|' .. ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], token_text, 'PX', ARGV[3])
return {token_text, expires}

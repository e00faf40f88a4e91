-- Renew or release a lock under its token.
-- KEYS: lock, nothing (a key that never is)
-- ARGV: verb (renew, release), token, lease in ms
-- Answer: 1 done, 0 lost

-- needs: _clock
local held = redis.call('GET', KEYS[1])
if not held then return 0 end
local token, expires, owner = string.match(held, '^(%d+)|(%d+)|(.*)$')
if token ~= ARGV[2] or tonumber(expires) <= now then return 0 end
if ARGV[1] == 'release' then
  return redis.call('DEL', KEYS[1])
end
-- Renewing must succeed when memory is short.
redis.call('DEL', KEYS[2])
local until_text = string.format('%.0f', now + tonumber(ARGV[3]))
redis.call('SET', KEYS[1], token .. '|' .. until_text .. '|' .. owner, 'PX', ARGV[3])
return 1

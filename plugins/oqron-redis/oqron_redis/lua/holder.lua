-- Show who holds a lock.
-- KEYS: lock
-- Answer: "token|expiry|owner", or nil

-- needs: _clock
local held = redis.call('GET', KEYS[1])
if not held then return false end
local expires = string.match(held, '^%d+|(%d+)|')
if not expires or tonumber(expires) <= now then return false end
return held

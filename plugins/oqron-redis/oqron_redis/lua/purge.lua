-- Empty a queue, leases included.
-- KEYS: ready, delayed, leased, ids
-- Answer: how many ids were in it

local count = redis.call('HLEN', KEYS[4])
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
return count

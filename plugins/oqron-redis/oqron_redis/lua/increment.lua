-- Add to a counter; its expiry is set where it has none.
-- KEYS: counter
-- ARGV: by, ms to live or ''
-- Answer: the sum as text, or nil where it would leave 64 bits

local added = redis.pcall('INCRBY', KEYS[1], ARGV[1])
if type(added) == 'table' and added.err then
  if string.find(added.err, 'overflow', 1, true) then return false end
  return added
end
if ARGV[2] ~= '' and redis.call('PTTL', KEYS[1]) == -1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
-- Lua would round what INCRBY gave.
return redis.call('GET', KEYS[1])

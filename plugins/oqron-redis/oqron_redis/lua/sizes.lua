-- Sum the bytes that records take.
-- KEYS: records
-- Answer: how many there are, and their bytes

local count, bytes = 0, 0
for k = 1, #KEYS do
  local size = redis.call('MEMORY', 'USAGE', KEYS[k])
  if size then
    count = count + 1
    bytes = bytes + size
  end
end
return {count, bytes}

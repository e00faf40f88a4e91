-- Take ids out of a queue, whatever their state.
-- KEYS: ready, delayed, leased, ids
-- ARGV: ids
-- Answer: one digit per id: 1 it was there, 0 it was not

local known = redis.call('HMGET', KEYS[4], unpack(ARGV))
local answer, seen, places, gone = {}, {}, {}, {}
for i = 1, #ARGV do
  local id, meta = ARGV[i], known[i]
  answer[i] = '0'
  if meta and not seen[id] then
    seen[id] = true
    answer[i] = '1'
    gone[#gone + 1] = id
    places[#places + 1] = string.sub(meta, 2, 17) .. id
  end
end
if #gone > 0 then
  redis.call('HDEL', KEYS[4], unpack(gone))
  redis.call('ZREM', KEYS[1], unpack(places))
  redis.call('ZREM', KEYS[2], unpack(gone))
  redis.call('ZREM', KEYS[3], unpack(gone))
end
return table.concat(answer)

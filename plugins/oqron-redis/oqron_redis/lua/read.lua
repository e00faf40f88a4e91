-- Read records.
-- KEYS: records
-- ARGV: whether expired ones are read too (0, 1); how many fields (-1 for all), their names
-- Answer: per record its fields as HGETALL gives them, see _fields, or the values of NUL and of
--       the fields asked for; 0 where it has expired, nil where it is absent

-- needs: _fields
local now = 0
if ARGV[1] == '0' then
  local clock = redis.call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end
local wanted = tonumber(ARGV[2])
local names = {META}
for i = 1, wanted do names[i + 1] = ARGV[i + 2] end

local answer = {}
for k = 1, #KEYS do
  local key, meta, fields = KEYS[k], nil, nil
  if wanted < 0 then
    meta = redis.call('HGET', key, META)
  else
    fields = redis.call('HMGET', key, unpack(names))
    meta = fields[1]
  end
  local cut = meta and string.find(meta, ':', 1, true)
  if not meta then
    answer[k] = false
  elseif cut and tonumber(string.sub(meta, cut + 1)) <= now then
    answer[k] = 0
  else
    answer[k] = fields and complete(key, names, fields) or redis.call('HGETALL', key)
  end
end
return answer

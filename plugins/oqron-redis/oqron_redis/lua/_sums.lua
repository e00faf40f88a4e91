-- Integer fields that are added to: their names; where their texts stand in `old`; and from
-- where on what is added stands in a row.

-- Give the sums of small integers, which a number of Lua holds exactly, as texts to set;
-- nil where one is no integer at all, and false where Redis has to add.
local function sums(old, names, places, row, base)
  local found = {}
  for i = 1, #names do
    local text, by = old[places[i]] or '0', row[base + i]
    if not string.find(text, '^-?%d+$') then return nil end
    if found and #text <= 15 and #by <= 15 then
      found[i] = string.format('%.0f', tonumber(text) + tonumber(by))
    else
      found = false
    end
  end
  return found
end

-- Add; whether all could be added to. HINCRBY knows best what leaves 64 bits, so what it
-- did before it refused is taken back.
local function raise_all(key, old, names, places, row, base)
  for i = 1, #names do
    -- It may stand in the body alone.
    redis.call('HSET', key, names[i], old[places[i]] or '0')
    local reply = redis.pcall('HINCRBY', key, names[i], row[base + i])
    if type(reply) == 'table' and reply.err then
      if not string.find(reply.err, 'overflow', 1, true)
        and not string.find(reply.err, 'integer', 1, true) then
        error(reply.err)
      end
      for back = 1, i - 1 do
        redis.call('HSET', key, names[back], old[places[back]] or '')
      end
      return false
    end
  end
  return true
end

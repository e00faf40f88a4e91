-- How the fields of a record stand in its hash: those that came with it are one text,
-- the body, until they change; each of them is as it was sent. A field of the hash goes
-- before one of the body, and an empty text, which no JSON has, says that it is gone.

local META, BODY = '\0', '\0b'

-- Give the fields of a body by their names: all names, then all texts, with NUL between.
local function unpacked(body)
  local parts, count, from = {}, 0, 1
  repeat
    local at = string.find(body, '\0', from, true)
    count = count + 1
    parts[count] = string.sub(body, from, at and at - 1)
    from = at and at + 1
  until not at
  local fields = {}
  if count % 2 == 0 then
    local half = count / 2
    for i = 1, half do fields[parts[i]] = parts[half + i] end
  end
  return fields
end

local function body_of(key)
  local body = redis.call('HGET', key, BODY)
  return body and unpacked(body) or {}
end

-- Find what HMGET did not: `found` has the texts of `names`, the first of which is META.
local function complete(key, names, found)
  local fields
  for i = 2, #names do
    local text = found[i]
    if text == '' then
      found[i] = false
    elseif not text then
      fields = fields or body_of(key)
      found[i] = fields[names[i]] or false
    end
  end
  return found
end

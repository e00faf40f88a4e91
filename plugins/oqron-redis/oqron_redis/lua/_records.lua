-- What is done with records, whatever the verb: `wanted` is how many fields are given
-- back (-1 for all), `returning` META and their names, `now_text` the instant.

-- needs: _fields
local call = redis.call

-- Note the texts of the fields that indexes look at, before and after a change; false
-- where there was or is no record. The indexes follow once, at the end: a record that
-- moves twice in a batch costs one move, and a batch that fails leaves no trace.
local function note(space, id, before, after)
  local n = space.seen[id]
  if n then
    space.after[n] = after
  else
    n = space.count + 1
    space.count = n
    space.seen[id] = n
    space.ids[n], space.before[n], space.after[n] = id, before, after
  end
end

local function expiry_of(meta)
  local cut = string.find(meta, ':', 1, true)
  return cut and string.sub(meta, cut + 1) or nil
end

local function alive(meta)
  if not meta then return false end
  local expires = expiry_of(meta)
  return not expires or tonumber(expires) > now
end

local function with_expiry(meta, expires)
  local cut = string.find(meta, ':', 1, true)
  local inserted = cut and string.sub(meta, 1, cut - 1) or meta
  if expires == '' then return inserted end
  return inserted .. ':' .. expires
end

local function report(applied, key, meta)
  if wanted == 0 then return applied == 1 and meta or {applied, meta} end
  if wanted < 0 then return {applied, meta, call('HGETALL', key)} end
  return {applied, meta, complete(key, returning, call('HMGET', key, unpack(returning)))}
end

-- Give the places where fields are read of a record, each once: `names` begins with META.
local function want(names, places, list)
  local found = {}
  for i = 1, #list do
    local name = list[i]
    if not places[name] then
      names[#names + 1] = name
      places[name] = #names
    end
    found[i] = places[name]
  end
  return found
end

local function picked(found, places)
  local texts = {}
  for i = 1, #places do texts[i] = found[places[i]] end
  return texts
end

-- Whether fields are as the texts of a row from `base` on expect. An empty text, which
-- no JSON has, expects that the field is absent.
local function holds(row, base, found, places)
  for i = 1, #places do
    local text = row[base + i]
    if text == '' then
      if found[places[i]] then return false end
    elseif found[places[i]] ~= text then
      return false
    end
  end
  return true
end

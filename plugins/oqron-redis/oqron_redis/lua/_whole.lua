-- Write whole records (I: where there is none; P: in any case); see write.
local names, insert = lists[1], verb == 'I'
local buffer = {META, META, BODY, row[2] or ''}
local indexed, columns = {}, {}
for i = 1, #names do
  buffer[2 * i + 3] = names[i]
  buffer[2 * i + 4] = row[i + 2] or ''
  local place = space.places[names[i]]
  if place then
    indexed[#indexed + 1] = place
    columns[#columns + 1] = i + 2
  end
end
for w = first, last do
  local key = records[w]
  local id = string.sub(key, space.prefix + 1)
  next_row()
  for v = 1, #varying do
    local column = varying[v]
    if column > 1 then buffer[2 * column] = row[column] end
  end
  local expires = row[1]
  local meta = call('HGET', key, META)
  local here = alive(meta)
  if insert and here then
    answer[w + 1] = report(0, key, meta)
    if atomic then failed = w break end
  else
    local before = false
    if atomic then save(key) end
    if meta then
      local old = {META}
      local at = want(old, {}, space.fields)
      before = picked(complete(key, old, call('HMGET', key, unpack(old))), at)
      if expiry_of(meta) then space.expiries[id] = false end
      call('DEL', key)
    end
    local stamp = with_expiry(here and meta or now_text, expires)
    buffer[2] = stamp
    call('HSET', key, unpack(buffer))
    local texts = {}
    for i = 1, #indexed do texts[indexed[i]] = row[columns[i]] end
    note(space, id, before, texts)
    if expires ~= '' then space.expiries[id] = expires end
    if here then
      answer[w + 1] = report(1, key, stamp)
    else
      answer[w + 1] = 1
    end
  end
end

-- Delete records that are as guards expect; see write.
local names, places = {META}, {}
local expect_at, field_at = want(names, places, lists[1]), want(names, places, space.fields)
for w = first, last do
  local key = records[w]
  next_row()
  local old = call('HMGET', key, unpack(names))
  local meta = old[1]
  if not alive(meta) then
    answer[w + 1] = 0
    if atomic then failed = w break end
  elseif not holds(row, 0, complete(key, names, old), expect_at) then
    answer[w + 1] = report(0, key, meta)
    if atomic then failed = w break end
  else
    if atomic then save(key) end
    local id = string.sub(key, space.prefix + 1)
    call('DEL', key)
    note(space, id, picked(old, field_at), false)
    if expiry_of(meta) then space.expiries[id] = false end
    answer[w + 1] = 2
  end
end

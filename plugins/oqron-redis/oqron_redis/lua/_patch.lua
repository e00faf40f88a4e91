-- Change fields of records that are as guards expect; see write.
local expect, set, unset, raise, join = lists[1], lists[2], lists[3], lists[4], lists[5]
-- Whether indexes look at what changes, and whether that is known only afterwards.
local moves, reread = false, false
for l = 2, 5 do
  for i = 1, #lists[l] do
    if space.places[lists[l][i]] then
      moves = true
      reread = reread or l > 2
    end
  end
end
-- One HMGET per record: meta, guards, what is raised and joined, and the fields of
-- the indexes where they change.
local names, places = {META}, {}
local expect_at = want(names, places, expect)
local raise_at, join_at = want(names, places, raise), want(names, places, join)
local field_at = want(names, places, moves and space.fields or {})
local set_base = 1 + #expect
local raise_base = set_base + #set
local join_base = raise_base + #raise
local moved, columns, changes = {}, {}, {}
for i = 1, #set do
  if space.places[set[i]] then
    moved[#moved + 1] = space.places[set[i]]
    columns[#columns + 1] = set_base + i
  end
  changes[2 * i - 1] = set[i]
end

-- needs: _sums

local function joined(text, body)
  if not text or string.find(text, '^%[%s*%]$') then return '[' .. body .. ']' end
  if body == '' then return text end
  return string.sub(text, 1, -2) .. ',' .. body .. ']'
end

for w = first, last do
  local key = records[w]
  next_row()
  local old = call('HMGET', key, unpack(names))
  local meta = old[1]
  if not alive(meta) then
    answer[w + 1] = 0
    if atomic then failed = w break end
  else
    complete(key, names, old)
    -- All that can refuse is looked at before anything is written.
    local ok = holds(row, 1, old, expect_at)
    local added = sums(old, raise, raise_at, row, raise_base)
    ok = ok and added ~= nil
    for i = 1, #join do
      local text = old[join_at[i]]
      ok = ok and (not text or string.byte(text) == 91)
    end
    if ok then
      if atomic then save(key) end
      ok = added or raise_all(key, old, raise, raise_at, row, raise_base)
    end
    if not ok then
      answer[w + 1] = report(0, key, meta)
      if atomic then failed = w break end
    else
      for i = 1, #set do changes[2 * i] = row[set_base + i] end
      local n = 2 * #set
      for i = 1, added and #raise or 0 do
        changes[n + 1], changes[n + 2] = raise[i], added[i]
        n = n + 2
      end
      for i = 1, #join do
        changes[n + 1], changes[n + 2] = join[i], joined(old[join_at[i]], row[join_base + i])
        n = n + 2
      end
      local expires = row[1]
      local id = (moves or expires ~= 'k') and string.sub(key, space.prefix + 1)
      if expires ~= 'k' then
        local stamp = with_expiry(meta, expires)
        if stamp ~= meta then
          changes[n + 1], changes[n + 2] = META, stamp
          n = n + 2
          space.expiries[id] = expires ~= '' and expires or false
          meta = stamp
        end
      end
      for i = 1, n, 4000 do
        call('HSET', key, unpack(changes, i, math.min(i + 3999, n)))
      end
      if #unset > 0 then
        -- What stands in the body is covered by an empty text.
        local fields = body_of(key)
        for i = 1, #unset do
          if fields[unset[i]] then
            call('HSET', key, unset[i], '')
          else
            call('HDEL', key, unset[i])
          end
        end
      end
      if moves then
        local after
        if reread then
          local fresh = {META}
          local at = want(fresh, {}, space.fields)
          after = picked(complete(key, fresh, call('HMGET', key, unpack(fresh))), at)
        else
          after = picked(old, field_at)
          for i = 1, #moved do after[moved[i]] = row[columns[i]] end
        end
        note(space, id, picked(old, field_at), after)
      end
      answer[w + 1] = report(1, key, meta)
    end
  end
end

-- Apply a batch of writes to records and keep their indexes.
--
-- A record is a hash of the top-level fields of the value, each its own JSON text, which
-- is compared, joined and handed on but never re-encoded; see _fields. The field NUL,
-- which no value can have, holds "inserted_at" or "inserted_at:expires_at".
--
-- KEYS: one record per write, in order; nothing (a key that never is); then of
--       each namespace: expiry index, namespaces of its kind, and its indexes
-- ARGV: atomic (0, 1); how many fields to return (-1 for all), their names;
--       spare (1: the batch may go on when memory is short); how many writes;
--       how many namespaces, and of each: length of what stands before the id in
--       a record key, name, how many indexes, and of each index the field that
--       must be equal and the field of the time (or '');
--       then groups: verb, namespace, count, lists of names, the values that all its
--       writes share, and per write the others. Of a whole record: its expiry, its
--       body, and what stands apart
-- Answer: now, then per write 1 (applied, as sent), 2 (applied, no record), 0 (not
--       applied, no record), its meta (applied, no fields asked for), or {applied,
--       meta, fields}; for an atomic batch that does not hold: -1 and the position of
--       the offender

-- needs: _index
-- needs: _fields
local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_text = string.format('%.0f', now)
local position = 0

local function take()
  position = position + 1
  return ARGV[position]
end

local function take_list()
  local list = {}
  for i = 1, tonumber(take()) do list[i] = take() end
  return list
end

-- The values of a group stand in columns. What all its writes share comes once: how
-- many columns that are, and of each its place and its value.
local function take_shared(width)
  local row, varying = {}, {}
  for i = 1, tonumber(take()) do
    local column = tonumber(take())
    row[column] = take()
  end
  for column = 1, width do
    if not row[column] then varying[#varying + 1] = column end
  end
  return row, varying
end

-- Take what differs in the next write.
local function take_row(row, varying)
  for i = 1, #varying do row[varying[i]] = ARGV[position + i] end
  position = position + #varying
end

local atomic = take() == '1'
local wanted = tonumber(take())
local returning = {META}
for i = 1, wanted do returning[i + 1] = take() end
if take() == '1' then
  -- A write that frees memory comes first: who finishes work must be able to.
  call('DEL', KEYS[tonumber(ARGV[position + 1]) + 1])
end
local writes = tonumber(take())

-- --- namespaces and their indexes ------------------------------------------

local namespaces = {}
do
  local k = writes + 2
  for n = 1, tonumber(take()) do
    local space = {
      prefix = tonumber(take()), name = take(), expiry = KEYS[k], registry = KEYS[k + 1],
      defs = {}, fields = {}, places = {}, expiries = {},
      count = 0, seen = {}, ids = {}, before = {}, after = {},
    }
    k = k + 2
    for d = 1, tonumber(take()) do
      local def = {key = KEYS[k]}
      for _, part in ipairs({'eq', 'time'}) do
        local field = take()
        if field ~= '' then
          if not space.places[field] then
            space.fields[#space.fields + 1] = field
            space.places[field] = #space.fields
          end
          def[part] = space.places[field]
        end
      end
      space.defs[d] = def
      k = k + 1
    end
    namespaces[n] = space
  end
end

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

-- Most records of a batch share the parts that stand before their ids.
local equal_heads, time_heads = {}, {}

local function equal_head(text)
  text = text or false
  local head = equal_heads[text]
  if not head then
    head = equal_part(text) .. META
    equal_heads[text] = head
  end
  return head
end

local function time_head(text)
  text = text or false
  local head = time_heads[text]
  if not head then
    head = time_part(text) .. META
    time_heads[text] = head
  end
  return head
end

local function member_of(def, id, texts)
  if def.eq and def.time then
    return equal_head(texts[def.eq]) .. time_head(texts[def.time]) .. id
  end
  if def.eq then return equal_head(texts[def.eq]) .. id end
  if def.time then return time_head(texts[def.time]) .. id end
  return id
end

local function flush(space, def)
  local added, removed, a, r = {}, {}, 0, 0
  local ids, old_texts, new_texts = space.ids, space.before, space.after
  for n = 1, space.count do
    local id, before, after = ids[n], old_texts[n], new_texts[n]
    local old = before and member_of(def, id, before)
    local new = after and member_of(def, id, after)
    if old ~= new then
      if old then
        r = r + 1
        removed[r] = old
      end
      if new then
        added[a + 1], added[a + 2] = 0, new
        a = a + 2
      end
    end
  end
  for i = 1, r, 4000 do
    call('ZREM', def.key, unpack(removed, i, math.min(i + 3999, r)))
  end
  for i = 1, a, 4000 do
    call('ZADD', def.key, unpack(added, i, math.min(i + 3999, a)))
  end
end

local function flush_expiries(space)
  local added = {}
  for id, expires in pairs(space.expiries) do
    if expires then
      added[#added + 1] = expires
      added[#added + 1] = id
    else
      call('ZREM', space.expiry, id)
    end
  end
  for i = 1, #added, 4000 do
    call('ZADD', space.expiry, unpack(added, i, math.min(i + 3999, #added)))
  end
end

local function finish()
  for n = 1, #namespaces do
    local space = namespaces[n]
    if space.count > 0 then
      for d = 1, #space.defs do flush(space, space.defs[d]) end
      if call('EXISTS', space.defs[1].key) == 1 then
        call('ZADD', space.registry, 0, space.name)
      else
        call('ZREM', space.registry, space.name)
      end
    end
    flush_expiries(space)
  end
end

-- --- records ----------------------------------------------------------------

local saved, order = {}, {}

local function save(key)
  if atomic and not saved[key] then
    saved[key] = call('HGETALL', key)
    order[#order + 1] = key
  end
end

local function undo()
  for i = 1, #order do
    local key, fields = order[i], saved[order[i]]
    call('DEL', key)
    for f = 1, #fields, 4000 do
      call('HSET', key, unpack(fields, f, math.min(f + 3999, #fields)))
    end
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

-- What is read of a record, each field once: META, then what is asked for.
local function reading()
  return {META}, {[META] = 1}
end

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

local function read(key, names)
  return complete(key, names, call('HMGET', key, unpack(names)))
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

local failed = nil

local function whole_group(verb, space, count, first, answer)
  local names = take_list()
  local width = #names
  local row, varying = take_shared(width + 2)
  local buffer = {META, META, BODY, row[2] or ''}
  local indexed, columns = {}, {}
  for i = 1, width do
    buffer[2 * i + 3] = names[i]
    buffer[2 * i + 4] = row[i + 2] or ''
    local place = space.places[names[i]]
    if place then
      indexed[#indexed + 1] = place
      columns[#columns + 1] = i + 2
    end
  end
  local old_names, old_places = reading()
  local field_at = want(old_names, old_places, space.fields)
  for w = first, first + count - 1 do
    local key = KEYS[w]
    local id = string.sub(key, space.prefix + 1)
    take_row(row, varying)
    for v = 1, #varying do
      local column = varying[v]
      if column > 1 then buffer[2 * column] = row[column] end
    end
    local expires = row[1]
    local meta = call('HGET', key, META)
    local here = alive(meta)
    if verb == 'I' and here then
      answer[w + 1] = report(0, key, meta)
      if atomic then failed = w return end
    else
      local before = false
      if meta then
        before = picked(read(key, old_names), field_at)
        save(key)
        if expiry_of(meta) then space.expiries[id] = false end
        call('DEL', key)
      else
        save(key)
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
end

local function touches(space, lists)
  for _, list in ipairs(lists) do
    for i = 1, #list do
      if space.places[list[i]] then return true end
    end
  end
  return false
end

-- The sums of small integers, which a number of Lua holds exactly, as texts to set;
-- nil where one is no integer at all, and none where Redis has to add.
local function sums(row, base, old, places)
  local found = {}
  for i = 1, #places do
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

-- Add to integer fields; whether all could be added to. HINCRBY knows best what
-- leaves 64 bits, so what it did before it refused is taken back.
local function raise_all(key, raise, row, base, old, places)
  for i = 1, #raise do
    -- It may stand in the body alone.
    call('HSET', key, raise[i], old[places[i]] or '0')
    local reply = redis.pcall('HINCRBY', key, raise[i], row[base + i])
    if type(reply) == 'table' and reply.err then
      if not string.find(reply.err, 'overflow', 1, true)
        and not string.find(reply.err, 'integer', 1, true) then
        error(reply.err)
      end
      for back = 1, i - 1 do
        call('HSET', key, raise[back], old[places[back]] or '')
      end
      return false
    end
  end
  return true
end

local function joined(text, body)
  if not text or string.find(text, '^%[%s*%]$') then return '[' .. body .. ']' end
  if body == '' then return text end
  return string.sub(text, 1, -2) .. ',' .. body .. ']'
end

-- Remove fields: what stands in the body is covered by an empty text.
local function remove(key, unset)
  local fields = body_of(key)
  for i = 1, #unset do
    if fields[unset[i]] then
      call('HSET', key, unset[i], '')
    else
      call('HDEL', key, unset[i])
    end
  end
end

local function patch_group(space, count, first, answer)
  local expect, set, unset = take_list(), take_list(), take_list()
  local raise, join = take_list(), take_list()
  local moves = touches(space, {set, unset, raise, join})
  local reread = touches(space, {unset, raise, join})
  -- One HMGET per record: meta, guards, what is raised and joined, and the fields of
  -- the indexes where they change.
  local names, places = reading()
  local expect_at = want(names, places, expect)
  local raise_at, join_at = want(names, places, raise), want(names, places, join)
  local field_at = want(names, places, moves and space.fields or {})
  local set_base = 1 + #expect
  local raise_base = set_base + #set
  local join_base = raise_base + #raise
  local row, varying = take_shared(join_base + #join)
  local moved, columns, changes = {}, {}, {}
  for i = 1, #set do
    if space.places[set[i]] then
      moved[#moved + 1] = space.places[set[i]]
      columns[#columns + 1] = set_base + i
    end
    changes[2 * i - 1] = set[i]
  end

  for w = first, first + count - 1 do
    local key = KEYS[w]
    take_row(row, varying)
    local old = call('HMGET', key, unpack(names))
    local meta = old[1]
    if not alive(meta) then
      answer[w + 1] = 0
      if atomic then failed = w return end
    else
      complete(key, names, old)
      -- All that can refuse is looked at before anything is written.
      local ok = holds(row, 1, old, expect_at)
      local added = sums(row, raise_base, old, raise_at)
      ok = ok and added ~= nil
      for i = 1, #join do
        local text = old[join_at[i]]
        ok = ok and (not text or string.byte(text) == 91)
      end
      if ok then
        save(key)
        ok = added or raise_all(key, raise, row, raise_base, old, raise_at)
      end
      if not ok then
        answer[w + 1] = report(0, key, meta)
        if atomic then failed = w return end
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
        if #unset > 0 then remove(key, unset) end
        if moves then
          local before, after = picked(old, field_at), nil
          if reread then
            local fresh, at = reading()
            at = want(fresh, at, space.fields)
            after = picked(read(key, fresh), at)
          else
            after = picked(old, field_at)
            for i = 1, #moved do after[moved[i]] = row[columns[i]] end
          end
          note(space, id, before, after)
        end
        answer[w + 1] = report(1, key, meta)
      end
    end
  end
end

local function delete_group(space, count, first, answer)
  local expect = take_list()
  local names, places = reading()
  local expect_at, field_at = want(names, places, expect), want(names, places, space.fields)
  local row, varying = take_shared(#expect)
  for w = first, first + count - 1 do
    local key = KEYS[w]
    local id = string.sub(key, space.prefix + 1)
    take_row(row, varying)
    local old = call('HMGET', key, unpack(names))
    local meta = old[1]
    if not alive(meta) then
      answer[w + 1] = 0
      if atomic then failed = w return end
    elseif not holds(row, 0, complete(key, names, old), expect_at) then
      answer[w + 1] = report(0, key, meta)
      if atomic then failed = w return end
    else
      save(key)
      call('DEL', key)
      note(space, id, picked(old, field_at), false)
      if expiry_of(meta) then space.expiries[id] = false end
      answer[w + 1] = 2
    end
  end
end

-- --- the batch ----------------------------------------------------------------

local answer = {now_text}
local w = 1
while w <= writes do
  local verb = take()
  local space = namespaces[tonumber(take())]
  local count = tonumber(take())
  if verb == 'U' then
    patch_group(space, count, w, answer)
  elseif verb == 'D' then
    delete_group(space, count, w, answer)
  else
    whole_group(verb, space, count, w, answer)
  end
  if failed then
    undo()
    return {'-1', failed - 1}
  end
  w = w + count
end
finish()
return answer

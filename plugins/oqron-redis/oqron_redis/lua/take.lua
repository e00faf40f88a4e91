-- Lease up to n ready ids, and mark the record of each.
--
-- A call whose answer was lost is made again: what it took is kept under its names.
-- Which records these are is not known before, so this is no step of a cluster.
--
-- A mark is a patch, as of write, of which all is known beforehand: it is read off the
-- arguments where it stands, as most of what a claim costs would be to take it apart.
-- KEYS: the six of claim; what this call took; the indexes in which a marked record moves;
--       then what calls took that were answered
-- ARGV: as of claim; the instant after which nobody waits; the milliseconds for which it
--       is known what was taken; whether the call is made again (0, 1); how many of others
--       are to be forgotten; what the JSON texts of the names begin with; then of the mark:
--       what stands before the id in the key of a record; how many guards, fields that are
--       added to, indexes and instants; the names of the guards and of what is added to;
--       the texts of the guards, an empty one for a field that is absent, and what is added;
--       of each index what stands before the id before and after; then names and texts of
--       what is set, of which the last are the instants, the token and the name, without
--       theirs
-- Answer: now; then as of claim; then what became of each record, as of write, or nothing
--         where this was taken before. Now alone where the call came too late

-- needs: _clock
-- calls: claim
local call = redis.call
local now_text = string.format('%.0f', now)
local mark, forgotten = KEYS[7], tonumber(ARGV[9])

local done = call('GET', mark)
if done then
  local parts = {}
  for part in string.gmatch(done .. '\0', '([^%z]*)%z') do parts[#parts + 1] = part end
  return {now_text, parts}
end
if now > tonumber(ARGV[6]) then
  return {now_text}
end

local taken = claim(KEYS, ARGV)
local last = (#taken - 1) / 4
local answer = {now_text}
if last > 0 then
  local guards, raises = tonumber(ARGV[12]), tonumber(ARGV[13])
  local indexes, instants = tonumber(ARGV[14]), tonumber(ARGV[15])
  local texts = 15 + guards + raises
  local heads = texts + guards + raises
  local names = {'\0', unpack(ARGV, 16, texts)}
  local changes = {unpack(ARGV, heads + 2 * indexes + 1)}
  local set = #changes
  for i = 1, instants do changes[set - 2 - 2 * i] = now_text end
  local raise, raise_at = {}, {}
  for i = 1, raises do
    raise[i], raise_at[i] = ARGV[15 + guards + i], 1 + guards + i
    changes[set + 2 * i - 1] = raise[i]
  end
  local moved = {}

  for i = 1, last do
    local key = ARGV[11] .. taken[4 * i - 2]
    local old = call('HMGET', key, unpack(names))
    local meta = old[1]
    local expires = meta and string.match(meta, ':(%d+)$')
    if not meta or expires and tonumber(expires) <= now then
      answer[i + 1] = 0
    else
      for n = 2, #names do
        if not old[n] or old[n] == '' then
          -- needs: _fields
          complete(key, names, old)
          break
        end
      end
      -- All that can refuse is looked at before anything is written.
      local ok = true
      for g = 1, guards do
        local text = ARGV[texts + g]
        if text == '' then text = false end
        ok = ok and old[g + 1] == text
      end
      if ok then
        local added = {}
        for r = 1, raises do
          local text, by = old[1 + guards + r] or '0', ARGV[texts + guards + r]
          if #text + #by > 15 or not string.find(text, '^%d+$') then
            -- needs: _sums
            added = sums(old, raise, raise_at, ARGV, texts + guards)
            ok = added or added == false
              and raise_all(key, old, raise, raise_at, ARGV, texts + guards)
            break
          end
          added[r] = string.format('%.0f', text + by)
        end
        for r = 1, ok and raises or 0 do
          -- Redis has added already where these are none; the same again changes nothing.
          changes[set + 2 * r] = added and added[r] or call('HGET', key, raise[r])
        end
      end
      if ok then
        changes[set - 2] = taken[4 * i - 1]
        changes[set] = ARGV[10] .. string.format('%04x"', i - 1)
        call('HSET', key, unpack(changes))
        moved[#moved + 1] = taken[4 * i - 2]
        answer[i + 1] = {1, meta, call('HGETALL', key)}
      else
        answer[i + 1] = {0, meta, call('HGETALL', key)}
      end
    end
  end

  for x = 1, #moved > 0 and indexes or 0 do
    local before, after = ARGV[heads + 2 * x - 1], ARGV[heads + 2 * x]
    local went, came = {}, {}
    for m = 1, #moved do
      went[m] = before .. moved[m]
      came[2 * m - 1], came[2 * m] = 0, after .. moved[m]
    end
    call('ZREM', KEYS[7 + x], unpack(went))
    call('ZADD', KEYS[7 + x], unpack(came))
  end
end
-- Where nothing was taken there is nothing to be known, but what is made again may have an
-- elder that is still on its way, until nobody waits for that any more.
if last > 0 then
  call('SET', mark, table.concat(taken, '\0'), 'PX', ARGV[7])
elseif ARGV[1] == '0' or ARGV[8] == '1' then
  -- As in claim: a write that frees memory comes first.
  call('DEL', mark)
  call('SET', mark, table.concat(taken, '\0'), 'PX', tonumber(ARGV[6]) - now + 1000)
end
for i = #KEYS - forgotten + 1, #KEYS do call('UNLINK', KEYS[i]) end
return {now_text, taken, answer}

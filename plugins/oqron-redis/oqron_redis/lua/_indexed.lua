-- Bring the indexes up to what was noted of each namespace; see write.
do
  -- needs: _index
  for n = 1, #namespaces do
    local space = namespaces[n]
    local ids, old_texts, new_texts = space.ids, space.before, space.after
    local came, went = false, false
    for d = 1, space.count > 0 and #space.defs or 0 do
      local def = space.defs[d]
      local added, removed, a, r = {}, {}, 0, 0
      for i = 1, space.count do
        local id, before, after = ids[i], old_texts[i], new_texts[i]
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
          came, went = came or not old, went or not new
        end
      end
      for i = 1, r, 4000 do
        call('ZREM', def[1], unpack(removed, i, math.min(i + 3999, r)))
      end
      for i = 1, a, 4000 do
        call('ZADD', def[1], unpack(added, i, math.min(i + 3999, a)))
      end
    end
    if came then
      call('ZADD', space.registry, 0, space.name)
    elseif went and call('EXISTS', space.defs[1][1]) == 0 then
      call('ZREM', space.registry, space.name)
    end
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
end

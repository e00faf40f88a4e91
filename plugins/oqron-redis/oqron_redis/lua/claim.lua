-- Lease up to n ready ids, after making ready what is due and what has lapsed.
-- KEYS: ready, delayed, leased, ids, counter, paused
-- ARGV: limit, lease in ms, owner, order, ttl of the counter in ms
-- Answer: expiry, then id, token, deliveries, priority of each lease

local ready, delayed, leased, ids = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- needs: _clock

-- What takes ids out comes first: a write that frees memory lets the rest pass under
-- `maxmemory`, and whoever works off a queue must be able to go on when memory is short.
local function make_ready(source)
  local moved = 0
  while moved < 10000 do
    local due = redis.call('ZRANGEBYSCORE', source, '-inf', now, 'LIMIT', 0, 500)
    if #due == 0 then return end
    local known = redis.call('HMGET', ids, unpack(due))
    local scores, states = {}, {}
    for i = 1, #due do
      local meta = known[i]
      if meta then
        local seq, priority, deliveries = string.match(meta, '^.(%d+)|(-?%d+)|(%d+)|')
        scores[#scores + 1] = priority
        scores[#scores + 1] = seq .. due[i]
        states[#states + 1] = due[i]
        states[#states + 1] = 'r' .. seq .. '|' .. priority .. '|' .. deliveries .. '||'
      end
    end
    redis.call('ZREM', source, unpack(due))
    if #scores > 0 then
      redis.call('ZADD', ready, unpack(scores))
      redis.call('HSET', ids, unpack(states))
    end
    moved = moved + #due
  end
end

-- A paused queue is left as it is, so that `reap` sees what has lapsed.
local limit = tonumber(ARGV[1])
if limit == 0 or redis.call('EXISTS', KEYS[6]) == 1 then
  return {0}
end

make_ready(delayed)
make_ready(leased)

local taken = {}
if ARGV[4] == 'fifo' then
  while #taken < limit do
    local popped = redis.call('ZPOPMIN', ready, math.min(limit - #taken, 1000))
    if #popped == 0 then break end
    for i = 1, #popped, 2 do taken[#taken + 1] = popped[i] end
  end
else
  while #taken < limit do
    local head = redis.call('ZRANGE', ready, 0, 0, 'WITHSCORES')
    if #head == 0 then break end
    local youngest = redis.call('ZREVRANGEBYSCORE', ready, head[2], head[2],
      'LIMIT', 0, math.min(limit - #taken, 1000))
    redis.call('ZREM', ready, unpack(youngest))
    for i = 1, #youngest do taken[#taken + 1] = youngest[i] end
  end
end
if #taken == 0 then
  return {0}
end

-- A counter that was lost goes on from the clock in microseconds: no token that
-- was given before can be larger.
local token = redis.call('GET', KEYS[5])
token = token and tonumber(token) or (clock[1] * 1000000 + clock[2])

local expires = now + tonumber(ARGV[2])
local until_text = string.format('%.0f', expires)
local owner = ARGV[3]
local answer = {until_text}
for first = 1, #taken, 1000 do
  local names, scores, states = {}, {}, {}
  local last = math.min(first + 999, #taken)
  for i = first, last do names[#names + 1] = string.sub(taken[i], 17) end
  local known = redis.call('HMGET', ids, unpack(names))
  for i = 1, #names do
    local id, meta = names[i], known[i]
    -- An id without a state is a ghost: nobody owns it, so nobody gets it.
    if meta then
      local seq, priority, deliveries = string.match(meta, '^.(%d+)|(-?%d+)|(%d+)|')
      token = token + 1
      local token_text = string.format('%.0f', token)
      local count = string.format('%.0f', deliveries + 1)
      scores[#scores + 1] = until_text
      scores[#scores + 1] = id
      states[#states + 1] = id
      states[#states + 1] = 'l' .. seq .. '|' .. priority .. '|' .. count .. '|'
        .. token_text .. '|' .. owner
      answer[#answer + 1] = id
      answer[#answer + 1] = token_text
      answer[#answer + 1] = count
      answer[#answer + 1] = priority
    end
  end
  if #scores > 0 then
    redis.call('ZADD', leased, unpack(scores))
    redis.call('HSET', ids, unpack(states))
  end
end
redis.call('SET', KEYS[5], string.format('%.0f', token), 'PX', ARGV[5])
return answer

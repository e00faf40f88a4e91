-- Renew, finish or give back leases, each only under its own token.
-- KEYS: ready, delayed, leased, ids, wake, nothing (a key that never is), paused
-- ARGV: verb (renew, ack, nack), ms of the lease or delay, priority or '',
--       channel, queue, then id and token of each
-- Answer: one digit per lease: 1 done, 0 lost

local ready, delayed, leased, ids = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local verb, span, new_priority = ARGV[1], tonumber(ARGV[2]), ARGV[3]
-- needs: _clock

local names = {}
for a = 6, #ARGV, 2 do names[#names + 1] = ARGV[a] end
local known = redis.call('HMGET', ids, unpack(names))
local expiries = redis.call('ZMSCORE', leased, unpack(names))

local answer, done, states, scores = {}, {}, {}, {}
local seen = {}
for i = 1, #names do
  local id, meta, expires = names[i], known[i], expiries[i]
  answer[i] = '0'
  if meta and expires and tonumber(expires) > now and not seen[id] then
    local state, seq, priority, deliveries, token = string.match(meta, '^(.)(%d+)|(-?%d+)|(%d+)|(%d*)|')
    if state == 'l' and token == ARGV[2 * i + 5] then
      answer[i] = '1'
      done[#done + 1] = id
      if verb == 'renew' then
        scores[#scores + 1] = now + span
        scores[#scores + 1] = id
      else
        -- The same lease twice in a batch: the second one is lost.
        seen[id] = true
        if verb == 'nack' then
          if new_priority ~= '' then priority = new_priority end
          states[#states + 1] = id
          if span > 0 then
            states[#states + 1] = 'd' .. seq .. '|' .. priority .. '|' .. deliveries .. '||'
            scores[#scores + 1] = now + span
            scores[#scores + 1] = id
          else
            states[#states + 1] = 'r' .. seq .. '|' .. priority .. '|' .. deliveries .. '||'
            scores[#scores + 1] = priority
            scores[#scores + 1] = seq .. id
          end
        end
      end
    end
  end
end

if #done > 0 then
  if verb == 'ack' then
    redis.call('HDEL', ids, unpack(done))
    redis.call('ZREM', leased, unpack(done))
  else
    -- As in claim: work goes on when memory is short.
    redis.call('DEL', KEYS[6])
    if verb == 'renew' then
      redis.call('ZADD', leased, unpack(scores))
    else
      redis.call('ZREM', leased, unpack(done))
      redis.call('HSET', ids, unpack(states))
      redis.call('ZADD', span > 0 and delayed or ready, unpack(scores))
      if redis.call('EXISTS', KEYS[7]) == 0 and redis.call('DEL', KEYS[5]) == 1 then
        redis.call('PUBLISH', ARGV[4], span > 0 and '\0' .. ARGV[5] or ARGV[5])
      end
    end
  end
end
return table.concat(answer)

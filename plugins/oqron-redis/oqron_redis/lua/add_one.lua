-- Insert one record, and make it claimable at once: what add does, where nothing of it is
-- there yet. Most calls are of this kind, and what add reads of its arguments to serve
-- every other costs as much again as the commands.
-- KEYS: ready, ids, counter, wake, paused, the registry of queues; the record; namespaces of
--       its kind; the mark of this call; then the indexes of the namespace; then the marks
--       of calls that were answered
-- ARGV: id, priority; channel, queue, ttl of the counter in ms; the namespace; the
--       milliseconds that the mark lasts; how many indexes there are, and of each what
--       stands before the id; then names and texts of the fields of the hash
-- Answer: now, then 1; nothing where something is there, and nothing was done

-- needs: _clock
local call = redis.call
local id, ids, record, mark = ARGV[1], KEYS[2], KEYS[7], KEYS[9]
if call('EXISTS', mark, record) > 0 or call('HEXISTS', ids, id) == 1 then
  return false
end

local now_text = string.format('%.0f', now)
local indexes = tonumber(ARGV[8])
call('HSET', record, '\0', now_text, unpack(ARGV, 9 + indexes))
for i = 1, indexes do call('ZADD', KEYS[9 + i], 0, ARGV[8 + i] .. id) end
call('ZADD', KEYS[8], 0, ARGV[6])

local last = call('GET', KEYS[3])
last = (last and tonumber(last) or (clock[1] * 1000000 + clock[2])) + 1
local seq = string.format('%016.0f', last)
call('HSET', ids, id, 'r' .. seq .. '|' .. ARGV[2] .. '|0||')
call('ZADD', KEYS[1], ARGV[2], seq .. id)
call('SET', KEYS[3], string.format('%.0f', last), 'PX', ARGV[5])
call('ZADD', KEYS[6], now, ARGV[4])
-- A paused queue wakes nobody: the mark stays for whoever resumes it.
if call('EXISTS', KEYS[5]) == 0 and call('DEL', KEYS[4]) == 1 then
  call('PUBLISH', ARGV[3], ARGV[4])
end
call('SET', mark, now_text .. ':1', 'PX', ARGV[7])
local forgotten = 10 + indexes
if KEYS[forgotten] then call('UNLINK', unpack(KEYS, forgotten)) end
return {now_text, 1}

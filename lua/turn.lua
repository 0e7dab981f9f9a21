-- turn.lua: tells which events may not be judged yet, since others wait for slots that were stored before them.
--
-- KEYS
--   1  calls    sorted set: call that granted something -> its time
--   2  leased   sorted set: record -> end of its lease
--   3  done     sorted set: record -> when it may be forgotten
--   4… rooms, one for each first-level category (see parts/room.lua), then lines (see parts/line.lua)
--
-- ARGV
--   number of rooms; number of lines; for each line: number of its room, and for how long after an event should have come back
--   others wait for it (microseconds)
--   for each event: record, when its message was stored (microseconds), its member in a line, number of its lines, and each
--
-- Returns for each event 0 and 0 if it may be judged: then nobody waits ahead of it, or something is known of it; else which of
-- its lines it has to wait in, from 1, and how long at least (microseconds). Nothing is written.

local FIRST = 64 -- as many of a line are looked at: those who come back first

-- How long to wait for an event that should be back.
local SOON = SECOND / 4

local calls_key, leased_key, done_key = KEYS[1], KEYS[2], KEYS[3]
local next_argument = reader(ARGV, 0)
local now = deployment_time(calls_key)
local room_count = tonumber(next_argument())

-- The first of a line who is not back, or has not been for long.
local function first_waiting(line)
  local stood = redis.call('ZRANGE', line.key, 0, FIRST - 1, 'WITHSCORES')
  local members, times = {}, {}
  for i = 1, #stood, 2 do
    members[#members + 1], times[#times + 1] = stood[i], tonumber(stood[i + 1])
  end
  local dues = dues_of(line.room_key, members)
  for i, member in ipairs(members) do
    local due = tonumber(dues[i] or nil)
    if due and due > now - line.patience then
      return { member = member, stored = times[i], wait = math.max(due - now, SOON) }
    end
  end
end

local lines = {}
for l = 1, tonumber(next_argument()) do
  local room_key = KEYS[3 + tonumber(next_argument())]
  lines[l] = { key = KEYS[3 + room_count + l], room_key = room_key, patience = tonumber(next_argument()) }
  lines[l].first = first_waiting(lines[l])
end

local reply = {}
for record in next_argument do
  local stored, member = tonumber(next_argument()), next_argument()
  local found, wait = 0, 0
  for l = 1, tonumber(next_argument()) do
    local first = lines[tonumber(next_argument())].first
    if first and (first.stored < stored or first.stored == stored and first.member < member) and first.wait > wait then
      found, wait = l, first.wait
    end
  end
  if found > 0 and (redis.call('ZSCORE', leased_key, record) or redis.call('ZSCORE', done_key, record)) then
    found, wait = 0, 0
  end
  reply[#reply + 1] = found
  reply[#reply + 1] = wait
end
return reply

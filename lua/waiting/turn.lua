-- turn.lua: returns which events may not be evaluated yet, because events that were stored before them wait for slots. Writes
-- nothing.
--
-- KEYS
--   1   calls   sorted set: nonce of a call that granted something -> its time
--   2   leased  sorted set: event key -> end of the lease (see lib/doubt.lua)
--   3   done    sorted set: event key of a delivered event -> when its record expires
--   4…  rooms, one for each first-level category (see lib/room.lua), then queues (see lib/queue.lua)
--
-- ARGV
--   number of rooms; number of queues; for each queue: number of its room, and how long later events wait for a late event
--   (microseconds)
--   for each event: event key, when its message was stored (microseconds), its member of a queue, number of its queues, number of
--   each queue
--
-- Returns for each event 0 and 0 if it may be evaluated, because no event waits ahead of it or it has a record; otherwise the
-- index of its queue where it must wait, from 1, and the shortest time to wait (microseconds).
--
-- Errors: WRONGTYPE.

--@include lib/queue

local FIRST = 64 -- how many events at the front of a queue are looked at

-- How long to wait for an event that is late.
local SOON = SECOND / 4

local calls_key, leased_key, done_key = KEYS[1], KEYS[2], KEYS[3]
local next_argument = reader(ARGV, 0)
local now = deployment_time(calls_key)
local room_count = tonumber(next_argument())

-- Returns the first event of a queue that waits or is late by no more than the queue's patience.
local function first_waiting(queue)
  local front = redis.call('ZRANGE', queue.key, 0, FIRST - 1, 'WITHSCORES')
  local members, times = {}, {}
  for i = 1, #front, 2 do
    members[#members + 1], times[#times + 1] = front[i], tonumber(front[i + 1])
  end
  local dues = dues_of(queue.room_key, members)
  for i, member in ipairs(members) do
    local due = tonumber(dues[i] or nil)
    if due and due > now - queue.patience then
      return { member = member, stored = times[i], wait = math.max(due - now, SOON) }
    end
  end
end

local queues = {}
for q = 1, tonumber(next_argument()) do
  local room_key = KEYS[3 + tonumber(next_argument())]
  queues[q] = { key = KEYS[3 + room_count + q], room_key = room_key, patience = tonumber(next_argument()) }
  queues[q].first = first_waiting(queues[q])
end

local reply = {}
for event_key in next_argument do
  local stored, member = tonumber(next_argument()), next_argument()
  local found, wait = 0, 0
  for q = 1, tonumber(next_argument()) do
    local first = queues[tonumber(next_argument())].first
    if first and (first.stored < stored or first.stored == stored and first.member < member) and first.wait > wait then
      found, wait = q, first.wait
    end
  end
  if found > 0 and (redis.call('ZSCORE', leased_key, event_key) or redis.call('ZSCORE', done_key, event_key)) then
    found, wait = 0, 0
  end
  reply[#reply + 1] = found
  reply[#reply + 1] = wait
end
return reply

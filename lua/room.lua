-- room.lua: lets events wait in the room, so many of each first-level category, and notes which do no longer.
--
-- KEYS
--   1  calls    sorted set: call that granted something -> its time
--   2… room:…   sorted set for each first-level category: event that waits, or waited in the last hour -> when it is due, or was;
--               a large event takes more than one member
--
-- ARGV
--   most events of a first-level category that may wait
--   for each event: number of its key, its name, how many members it takes, time until it is due (microseconds; 0: it has left)
--
-- Returns 1 for each event that waits, or has left; else 0, and nothing has changed for it. An event that waits already counts
-- once, however often this is repeated.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

local calls_key = KEYS[1]
local next_argument = reader(ARGV, 0)
local most = tonumber(next_argument())
local now = deployment_time(calls_key)

local rooms = {}
for k = 2, #KEYS do
  rooms[k - 1] = { key = KEYS[k], count = redis.call('ZCOUNT', KEYS[k], '(' .. integer(now), '+inf'), added = {}, removed = {}, entering = {} }
end

local reply = {}
for number in next_argument do
  local room, event = rooms[tonumber(number)], next_argument()
  local weight, due = tonumber(next_argument()), tonumber(next_argument())
  local waits = room.entering[event] or tonumber(redis.call('ZSCORE', room.key, event) or 0) > now
  local enters = due > 0 and (waits or room.count + weight <= most)
  if enters and not waits then
    room.count = room.count + weight
    room.entering[event] = true
  end
  for place = 1, weight do
    if enters then
      room.added[#room.added + 1] = integer(now + due)
      room.added[#room.added + 1] = slot_member(event, place)
    elseif due == 0 then
      room.removed[#room.removed + 1] = slot_member(event, place)
    end
  end
  reply[#reply + 1] = (enters or due == 0) and 1 or 0
end

for _, room in ipairs(rooms) do
  write_room(room.key, room.added, room.removed, now)
end
return reply

-- room.lua: lets events enter and leave the room, and limits the weight of the events of one first-level category.
--
-- KEYS
--   1   calls   sorted set: nonce of a call that granted something -> its time
--   2…  room:…  sorted set for each first-level category: event that waits or waited in the last hour -> when it is or was,
--               due (see lib/room.lua)
--
-- ARGV
--   largest weight of the waiting events of one first-level category
--   for each event: number of its room, its name, its weight, time until it is due (microseconds; 0: it leaves)
--
-- Returns 1 for each event that waits or has left, and 0 if nothing was changed for the event. An event that waits already
-- counts once, however often the call is repeated.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/room

local calls_key = KEYS[1]
local next_argument = reader(ARGV, 0)
local max_weight = tonumber(next_argument())
local now = deployment_time(calls_key)

local rooms = {}
for k = 2, #KEYS do
  local weight = redis.call('ZCOUNT', KEYS[k], '(' .. integer(now), '+inf')
  rooms[k - 1] = { key = KEYS[k], weight = weight, added = {}, removed = {}, entering = {} }
end

local reply = {}
for number in next_argument do
  local room, event = rooms[tonumber(number)], next_argument()
  local weight, due = tonumber(next_argument()), tonumber(next_argument())
  local waits = room.entering[event] or tonumber(redis.call('ZSCORE', room.key, event) or 0) > now
  local enters = due > 0 and (waits or room.weight + weight <= max_weight)
  if enters and not waits then
    room.weight = room.weight + weight
    room.entering[event] = true
  end
  for w = 1, weight do
    if enters then
      room.added[#room.added + 1] = integer(now + due)
      room.added[#room.added + 1] = slot_member(event, w)
    elseif due == 0 then
      room.removed[#room.removed + 1] = slot_member(event, w)
    end
  end
  reply[#reply + 1] = (enters or due == 0) and 1 or 0
end

for _, room in ipairs(rooms) do
  write_room(room.key, room.added, room.removed, now)
end
return reply

-- prelude.lua: what every script starts with. The scripts are loaded with this text in front.
--
-- Times are microseconds of the server's clock. They exceed what tostring and the concatenation operator print
-- exactly, so a number reaches a command only through integer().

local SECOND = 1000000

-- How far ahead of the clock a recorded time may lie and still count: a clock that stepped back by less is waited
-- out, one that had run ahead by more is ignored.
local TOLERANCE = 60 * SECOND

-- Lua's unpack and Redis' argument lists are limited; long lists are passed in pieces of this many values.
local PIECE = 1000

local function integer(number)
  return string.format('%.0f', number)
end

local function server_time()
  local time = redis.call('TIME')
  return time[1] * SECOND + time[2]
end

-- The time of a deployment is its server's, but always later than that of the newest call that granted something: each
-- such call has a time of its own, and a clock that stepped back is waited out. The second result tells whether there
-- were calls by a clock that had run too far ahead.
local function deployment_time(calls_key)
  local now, ran_ahead = server_time(), false
  local newest = redis.call('ZRANGE', calls_key, -1, -1, 'WITHSCORES')[2]
  if newest and tonumber(newest) > now + TOLERANCE then
    ran_ahead = true
    local upto = integer(now + TOLERANCE)
    newest = redis.call('ZRANGE', calls_key, upto, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  end
  if newest then
    now = math.max(now, tonumber(newest) + 1)
  end
  return now, ran_ahead
end

local function milliseconds(microseconds)
  return integer(math.ceil(microseconds / 1000))
end

-- A script that fails does not roll back, so a command that this user lacks must be found out before anything is
-- written. This changes nothing but how long the key is kept (microseconds).
local function check_rights(key, kept)
  redis.call('ZREM', key, '')
  redis.call('PEXPIRE', key, milliseconds(kept))
end

-- Runs a command on a key with any number of values; returns the sum of its integer replies.
local function in_pieces(command, key, values)
  local sum = 0
  for from = 1, #values, PIECE do
    sum = sum + redis.call(command, key, unpack(values, from, math.min(from + PIECE - 1, #values)))
  end
  return sum
end

-- Adds { score, member, … } to a sorted set, leaving members alone that it has; returns how many are new.
local function add_new(key, values)
  local sum = 0
  for from = 1, #values, PIECE do
    sum = sum + redis.call('ZADD', key, 'NX', unpack(values, from, math.min(from + PIECE - 1, #values)))
  end
  return sum
end

-- An event comes as its record, its name in the delivery record, and a stamp of the stored message that it came in.
-- The record is its ID; but an ID that was derived from the message's place in the stream is followed by a line feed
-- and the stamp, since a stream that was made anew counts from 1 again. The stamp is then left out ('').
--
-- In the logs an event goes by its ID or, where an older event has that name, by ID, line feed and stamp.
local function log_names(record, stamp)
  if stamp == '' then
    return string.match(record, '^[^\n]*'), record
  end
  return record, record .. '\n' .. stamp
end

-- The member of a log that stands for one slot of an event.
local function slot_member(name, slot)
  if slot == 1 then
    return name
  end
  return name .. '\n' .. slot
end

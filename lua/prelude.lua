-- prelude.lua: what every script starts with. The scripts are loaded with this text in front, then those of algorithms/ and
-- of parts/ that they need.
--
-- Times are microseconds of the server's clock. They exceed what tostring and the concatenation operator print
-- exactly, so a number reaches a command only through integer().

local SECOND = 1000000

-- How long the nonce of a call is kept: longer than a client goes on repeating it.
local NONCE_KEPT = 10 * SECOND

-- How far ahead of the clock a recorded time may lie and still count: a clock that stepped back by less is waited
-- out, one that had run ahead by more is ignored.
local TOLERANCE = 60 * SECOND

-- How long the state of the limits is known. An instance that has not read them for a year is none that still runs.
local LIMITS_KEPT = 366 * 24 * 3600 * SECOND

-- Lua's unpack and Redis' argument lists are limited; long lists are passed in pieces of this many values.
local PIECE = 1000

-- How many members that count no more a call removes, besides as many as it adds. To remove a million at once would stop the
-- server for half a second.
local SPARE = 500

-- The form in which whole numbers are printed exactly. %d is the faster one, where the machine's integers are wide enough; that
-- is found out by the first number, since a library has no names but redis while it is loaded.
local whole

local function integer(number)
  whole = whole or string.format('%d', 2 ^ 53) == '9007199254740992' and '%d' or '%.0f'
  return string.format(whole, number)
end

local function server_time()
  local time = redis.call('TIME')
  return time[1] * SECOND + time[2]
end

-- The time of a deployment is its server's, but always later than that of the newest call that granted something: each
-- such call has a time of its own, and a clock that stepped back is waited out. Further results: that
-- call's time, if there was one, and whether there were calls by a clock that had run too far ahead.
local function deployment_time(calls_key)
  local now, ran_ahead = server_time(), false
  local newest = tonumber(redis.call('ZRANGE', calls_key, '0', '0', 'REV', 'WITHSCORES')[2])
  if newest and newest > now + TOLERANCE then
    ran_ahead = true
    local upto = integer(now + TOLERANCE)
    newest = tonumber(redis.call('ZRANGE', calls_key, upto, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2])
  end
  if newest then
    now = math.max(now, newest + 1)
  end
  return now, newest, ran_ahead
end

local function milliseconds(microseconds)
  return integer(math.ceil(microseconds / 1000))
end

-- Notes the time of a call that grants something, for so long (microseconds). It does no harm by itself.
local function note_call(calls_key, nonce, time, kept)
  local there = redis.call('PEXPIRE', calls_key, milliseconds(kept)) == 1
  redis.call('ZADD', calls_key, time, nonce)
  if not there then
    redis.call('PEXPIRE', calls_key, milliseconds(kept))
  end
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

-- Returns what removes members of sorted sets up to a score, in one call of a script: of each set twice as many as the call
-- adds to it, so that it shrinks, and SPARE more of all sets together. What is left for later calls must not count.
local function new_trimmer()
  local spare = SPARE
  return function(key, upto, added)
    local stale = math.min(redis.call('ZCOUNT', key, '-inf', upto), 2 * added + spare)
    spare = spare - math.max(0, stale - 2 * added)
    local first, last = 0, stale - 1
    if stale == 0 then
      first, last = 1, 0 -- nothing; a user without the right to remove is told so here
    end
    redis.call('ZREMRANGEBYRANK', key, first, last)
  end
end

-- Likewise removes calls by a clock that had run too far ahead.
local function trim_ahead(calls_key, now)
  local ahead = redis.call('ZCOUNT', calls_key, '(' .. integer(now + TOLERANCE), '+inf')
  if ahead > 0 then
    redis.call('ZREMRANGEBYRANK', calls_key, -math.min(ahead, SPARE), -1)
  end
end

-- Adds members to a sorted set, if there are any, and keeps it that long (milliseconds).
local function add_for(key, members, kept)
  if #members > 0 then
    in_pieces('ZADD', key, members)
    redis.call('PEXPIRE', key, kept)
  end
end

-- A few whole numbers that are kept as one string, apart by blanks.
local function load_numbers(key)
  local text = redis.call('GET', key)
  if not text then
    return nil
  end
  local numbers = {}
  for number in string.gmatch(text, '%d+') do
    numbers[#numbers + 1] = tonumber(number)
  end
  return numbers
end

local function save_numbers(key, kept, ...)
  local texts = {}
  for i, number in ipairs({ ... }) do
    texts[i] = integer(number)
  end
  redis.call('SET', key, table.concat(texts, ' '), 'PX', milliseconds(kept))
end

-- Forgets what no answer depends on any more: calls, except the newest, above whose time the clock stays; and the records
-- of events that nobody asks for again. The scripts that end deliveries do it, since nothing waits for those.
local function forget(keys, now, newest_call, retention)
  new_trimmer()(keys.calls, '(' .. integer(math.min(now - NONCE_KEPT, newest_call or now)), 0)
  local left = SPARE
  local function forget_until(key, upto)
    local forgotten = redis.call('ZRANGE', key, '-inf', integer(upto), 'BYSCORE', 'LIMIT', 0, left)
    left = left - #forgotten
    if #forgotten > 0 then
      redis.call('ZREM', key, unpack(forgotten))
      redis.call('ZREM', keys.message, unpack(forgotten))
      redis.call('ZREM', keys.taken, unpack(forgotten))
    end
  end
  forget_until(keys.done, now)
  forget_until(keys.leased, now - retention)
end

-- An event comes as its record, its name in the delivery record, and a stamp of the stored message that it came in.
-- The record is its identity: category, blank and ID, without a line feed. One that was derived from the message's place in
-- the stream is followed by a line feed and the stamp, since a stream that was made anew counts from 1 again. The stamp is then
-- left out ('').
--
-- In the logs an event goes by its identity or, where an older event has that name, by the name of its stored message: identity,
-- line feed and stamp.
local function log_name(record, stamp)
  local line_feed = stamp == '' and string.find(record, '\n', 1, true)
  return line_feed and string.sub(record, 1, line_feed - 1) or record
end

local function message_name(record, stamp)
  return stamp == '' and record or record .. '\n' .. stamp
end

-- The member of a log that stands for one slot of an event.
local function slot_member(name, slot)
  if slot == 1 then
    return name
  end
  return name .. '\n' .. slot
end

-- Gives the values of a list one by one, from behind a position.
local function reader(values, position)
  return function()
    position = position + 1
    return values[position]
  end
end

-- Gives the words of a text one by one, each of which a blank follows.
local function words(text)
  local find, sub, from = string.find, string.sub, 1
  return function()
    local blank = find(text, ' ', from, true)
    local word = sub(text, from, blank - 1)
    from = blank + 1
    return word
  end
end

-- The algorithms by their names; their files add themselves, those that a deployment uses. A meter is what one of them
-- counts with: the log of a place with all its log limits, or the state of one other limit. An algorithm has
--   read(meter)                 reads its state; nothing is decided before
--   wait(meter, cost, g)        nil if the cost fits, else the limit that is full and the time until it does (microseconds);
--                               g is the number of the guarantee that the event belongs to, else 0
--   take(meter, event)          takes the slots, in this call
--   trim(meter, trim)           removes what has left every window, by a trimmer; it need not have this
--   write(meter)                writes what has changed
--   give_back(meter, event)     returns the slots of an event that was not delivered
--   restore(meter, event, at)   takes the slots of an event that was admitted elsewhere at a time
--   used(meter, limit)          slots taken now
-- and says whether it
--   times_admissions            needs event.taken, the time of admission, to return slots
--   follows_delivery            gives its slots back when the delivery ends, by give_back; it then also has
--                               holds(meter, event), renew(meter, event) and, for slots that may be lost by now,
--                               extend(meter, event), which writes at once
local algorithms = {}

-- Reads meters from ARGV and their keys from KEYS:
--   number of meters; for each: algorithm, number of limits; for each limit: count, window (microseconds), burst;
--   number of guarantees; for each: its slots
-- The key of a meter is followed by those of its guarantees.
local function read_meters(next_argument, next_key, now, lease)
  local meters, limit_count = {}, 0
  local time, latest = integer(now), integer(now + TOLERANCE)
  for m = 1, tonumber(next_argument()) do
    local algorithm, key = algorithms[next_argument()], next_key()
    local limits, guarantees, longest = {}, {}, 0
    for l = 1, tonumber(next_argument()) do
      limit_count = limit_count + 1
      local count, window, burst = tonumber(next_argument()), tonumber(next_argument()), tonumber(next_argument())
      limits[l] = { number = limit_count, count = count, window = window, burst = burst, stored = 0, reserved = 0 }
      longest = math.max(longest, window)
    end
    for g = 1, tonumber(next_argument()) do
      local slots = tonumber(next_argument())
      guarantees[g] = { key = next_key(), slots = slots }
      guarantees.slots = (guarantees.slots or 0) + slots
    end
    meters[m] = {
      algorithm = algorithm, key = key, limits = limits, limit = limits[1], guarantees = guarantees, longest = longest,
      now = now, time = time, latest = latest, lease = lease, was_read = false, changed = false,
    }
  end
  return meters
end

-- Reads the meters of one event: their number, and the index of each.
local function read_path(next_argument, meters)
  local path = {}
  for m = 1, tonumber(next_argument()) do
    path[m] = meters[tonumber(next_argument())]
  end
  return path
end

local function read_once(meter)
  if not meter.was_read then
    meter.algorithm.read(meter)
    meter.was_read = true
  end
  return meter
end

-- Renews the slots that follow a delivery which goes on, and takes those again that it has lost; or returns how long it has
-- to wait for them. A limit that has become too small for it does not keep it for ever.
local function resume(event, path)
  local held, lost = {}, {}
  for _, meter in ipairs(path) do
    if meter.algorithm.follows_delivery and event.cost <= meter.limit.count then
      if meter.algorithm.holds(read_once(meter), event) then
        held[#held + 1] = meter
      else
        local limit, time = meter.algorithm.wait(meter, event.cost, 0)
        if limit then
          return time
        end
        lost[#lost + 1] = meter
      end
    end
  end
  for _, meter in ipairs(held) do
    meter.algorithm.renew(meter, event)
    meter.changed = true
  end
  for _, meter in ipairs(lost) do
    meter.algorithm.take(meter, event)
    meter.changed = true
  end
end

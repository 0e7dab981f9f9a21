-- prelude.lua: the start of every script: numbers, time, sorted sets, names of events, reading of ARGV.
--
-- A script is composed: see README.md. Times are microseconds of the server's clock. They exceed what tostring and the
-- concatenation operator print exactly, so a number reaches a command only through integer().

local SECOND = 1000000

-- The lifetime of a call's nonce: longer than a client retries the call.
local NONCE_KEPT = 10 * SECOND

-- How far ahead of the clock a recorded time may lie and still count. If the clock stepped back by less, time waits for it. If
-- the clock had run ahead by more, the recorded time is ignored.
local TOLERANCE = 60 * SECOND

-- The lifetime of the version of the limits. No running instance leaves it unread for a year.
local LIMITS_KEPT = 366 * 24 * 3600 * SECOND

-- How many values one command gets: Lua's unpack and Redis' argument lists are limited.
local PIECE = 1000

-- The number of stale members that a call removes beyond twice its own. Removing a million at once would stop the server for
-- half a second.
local SPARE = 500

-- The format that prints whole numbers exactly. %d is faster, but is exact only where C integers are wide enough. The first call
-- of integer() finds out, since a library has no global names but redis while it is loaded.
local whole

local function integer(number)
  whole = whole or string.format('%d', 2 ^ 53) == '9007199254740992' and '%d' or '%.0f'
  return string.format(whole, number)
end

local function server_time()
  local time = redis.call('TIME')
  return time[1] * SECOND + time[2]
end

-- Returns the deployment's time: the server's time, but always after the newest call that granted something. Each granting
-- call has its own time, and time stands still after the clock stepped back. Also returns whether calls are recorded that lie
-- more than TOLERANCE ahead of the clock.
local function deployment_time(calls_key)
  local now = server_time()
  if redis.call('ZCOUNT', calls_key, integer(now), '+inf') == 0 then
    return now, false
  end
  local newest = tonumber(redis.call('ZRANGE', calls_key, '0', '0', 'REV', 'WITHSCORES')[2])
  local ran_ahead = newest > now + TOLERANCE
  if ran_ahead then
    local upto = integer(now + TOLERANCE)
    newest = tonumber(redis.call('ZRANGE', calls_key, upto, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2])
  end
  return newest and math.max(now, newest + 1) or now, ran_ahead
end

local function milliseconds(microseconds)
  return integer(math.ceil(microseconds / 1000))
end

-- Records the time of a granting call and keeps the calls that long (microseconds). A call that fails afterwards does no harm.
local function note_call(calls_key, nonce, time, kept)
  local there = redis.call('PEXPIRE', calls_key, milliseconds(kept)) == 1
  redis.call('ZADD', calls_key, time, nonce)
  if not there then
    redis.call('PEXPIRE', calls_key, milliseconds(kept))
  end
end

-- Runs a command on a key with any number of values. Returns the sum of the integer replies.
local function in_pieces(command, key, values)
  local sum = 0
  for from = 1, #values, PIECE do
    sum = sum + redis.call(command, key, unpack(values, from, math.min(from + PIECE - 1, #values)))
  end
  return sum
end

-- Removes `count` members with the lowest scores. Sends the command for 0 members too, so that a missing right shows.
local function remove_lowest(key, count)
  local first, last = 0, count - 1
  if count == 0 then
    first, last = 1, 0 -- an empty range
  end
  redis.call('ZREMRANGEBYRANK', key, first, last)
end

-- Returns a function that removes members of a sorted set up to a score. In one call of a script it removes, from each set,
-- twice the members that the call adds, and SPARE more from all sets together. The members that stay must not count.
local function new_trimmer()
  local spare = SPARE
  return function(key, upto, added)
    local stale = math.min(redis.call('ZCOUNT', key, '-inf', upto), 2 * added + spare)
    if stale > 0 then
      spare = spare - math.max(0, stale - 2 * added)
      remove_lowest(key, stale)
    end
  end
end

-- Removes up to SPARE calls that lie more than TOLERANCE ahead of the clock.
local function trim_ahead(calls_key, now)
  local ahead = redis.call('ZCOUNT', calls_key, '(' .. integer(now + TOLERANCE), '+inf')
  if ahead > 0 then
    redis.call('ZREMRANGEBYRANK', calls_key, -math.min(ahead, SPARE), -1)
  end
end

-- Adds members to a sorted set and keeps the set that long (milliseconds). Does nothing without members.
local function add_for(key, members, kept)
  if #members > 0 then
    in_pieces('ZADD', key, members)
    redis.call('PEXPIRE', key, kept)
  end
end

-- Sets fields of a hash and keeps the hash that long (milliseconds). Does nothing without fields.
local function put_for(key, fields, kept)
  if #fields > 0 then
    in_pieces('HSET', key, fields)
    redis.call('PEXPIRE', key, kept)
  end
end

-- Reads whole numbers that are stored as one string with blanks between them.
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

-- A call names an event by its event key and the version of the stored message that carried it. Leases and deliveries are
-- recorded under the event key.
--
-- The event key is the event's identity: category, blank and ID, without a line feed. An ID that was derived from the position
-- in the stream is followed by a line feed and the version, since a stream that is recreated counts from 1 again. The version
-- of such an event is ''.
--
-- A log names an event by its identity or, if an older event has this identity, by its message name: identity, line feed,
-- version.
local function log_name(event_key, version)
  local line_feed = version == '' and string.find(event_key, '\n', 1, true)
  return line_feed and string.sub(event_key, 1, line_feed - 1) or event_key
end

local function message_name(event_key, version)
  return version == '' and event_key or event_key .. '\n' .. version
end

-- Returns the member that stands for one slot of an event.
local function slot_member(name, slot)
  if slot == 1 then
    return name
  end
  return name .. '\n' .. slot
end

-- Returns a function that returns the values of a list one by one, from behind an index.
local function reader(values, index)
  return function()
    index = index + 1
    return values[index]
  end
end

-- Returns a function that returns the words of a text one by one. A blank follows each word.
local function words(text)
  local find, sub, from = string.find, string.sub, 1
  return function()
    local blank = find(text, ' ', from, true)
    local word = sub(text, from, blank - 1)
    from = blank + 1
    return word
  end
end

-- Reads the path of an event: how many buckets, then the number of each.
local function read_path(next_argument, buckets)
  local path = {}
  for m = 1, tonumber(next_argument()) do
    path[m] = buckets[tonumber(next_argument())]
  end
  return path
end

-- Name -> algorithm. Each file in algorithms/ adds itself; lib/buckets.lua lists the functions of an algorithm.
local algorithms = {}

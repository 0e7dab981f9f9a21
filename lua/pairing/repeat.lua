-- repeat.lua: looks for firing events among the messages of open pairs, and among the events that are folded into the newest messages. An event
-- that is there was delivered or folded, so its message repeats it: its record and its pair are renewed. Returns which events are due to be posted
-- again as reminders.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2   done     sorted set: event key of a delivered event -> when its record expires
--   3   message  sorted set: event key -> version of the stored message
--   4…  books of pairs, see read_books
--
-- ARGV
--   lease, retention, retention of pairs, how long after its last message an event is due (0: never), all in microseconds
--   books (see read_books)
--   for each event: event key, version of the stored message, number of its book, pair
--
-- Returns for each event
--   0   it has no message in an open pair or is not due
--   -1  its message was posted for this very stored message
--   n   it is due or was admitted as a reminder, and has n messages; MOST_MESSAGES if it is folded
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/pairs

local next_argument = reader(ARGV, 0)
local done_key, message_key = KEYS[2], KEYS[3]
local lease, retention = tonumber(next_argument()), tonumber(next_argument())
local kept, remind = tonumber(next_argument()), tonumber(next_argument())
local now = deployment_time(KEYS[1])
local books = read_books(next_argument, reader(KEYS, 3), now, kept)

-- Writing at each repetition would cost more than it gains.
local RENEWED = 0.99

local dones, versions = {}, {}

-- Returns whether a stored message of an event was admitted as the reminder with a number (see Reminder in internal/throttle/store). Such a
-- reminder goes on, although other messages and folded events may have come since: otherwise it would keep its slots and its lease.
local function is_reminder(event_key, version, number)
  local category, id = string.match(event_key, '^([^ ]*) ?(.*)$')
  return tonumber(redis.call('ZSCORE', message_key, category .. '~' .. number .. ' ' .. id) or 0) == version
end

-- Returns the answer for an event.
local function answer(event_key, version, book, pair)
  local entry = read_pair(book, pair)
  local messages = read_messages(entry) or {}
  local count, last = 0, nil
  for _, m in ipairs(messages) do
    if m.event_key == event_key then
      if m.carrier == version then
        return -1
      end
      count, last = count + 1, m
    end
  end
  local under_way = last and count or MOST_MESSAGES
  if messages[1] and is_reminder(event_key, version, under_way) then
    return under_way
  end
  local newest = messages[#messages]
  local folded = not last and newest and newest.newest > 0 and tonumber(redis.call('ZSCORE', message_key, event_key) or 0)
  if folded and folded == newest.newest and folded ~= version then
    -- An event that has messages has fewer, so no later reminder of the event has this number.
    count, last = MOST_MESSAGES, { event_key = event_key, version = folded, time = newest.time }
  end
  if not last then
    return 0
  end
  if entry.expires < now + RENEWED * kept then
    put_pair(book, pair, messages_text(messages), now + kept)
  end
  if tonumber(redis.call('ZSCORE', done_key, event_key) or 0) < now + RENEWED * retention then
    remember(last, now + retention, dones, versions)
  end
  local is_due = remind > 0 and now - last.time >= remind and #messages < MOST_MESSAGES
  return is_due and count or 0
end

local reply = {}
for event_key in next_argument do
  local version, book = tonumber(next_argument()), books[tonumber(next_argument())]
  reply[#reply + 1] = answer(event_key, version, book, next_argument())
end
if #dones > 0 then
  check_rights(done_key, lease + retention)
  redis.call('ZREM', message_key, '')
end
write_books(books)
if #dones > 0 then
  add_and_keep(done_key, dones, lease + retention)
  add_for(message_key, versions, milliseconds(lease + retention))
end
return reply

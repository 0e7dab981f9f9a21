-- count.lua: returns which messages do not show all events that are folded into them, begins to show the count of one message, or gives a message
-- up that cannot be updated: no further event is folded into it.
--
-- KEYS
--   1   calls  sorted set: nonce of a call that granted something -> its time
--   2…  books of pairs, see read_books
--
-- ARGV
--   'list', 'begin' or 'give up'; shortest time between two updates that show the count of a message (microseconds), books (see read_books)
--   for each pair: number of its book, pair, receipt of the message; list: ''
--
-- Returns a list for each pair
--   list     for each message that shows too few events its receipt, how many are folded into it, and the microseconds until it may show them
--   begin    the microseconds until the message may show its count; if they are 0, the events that are folded into it, the time of the newest
--            one, the rank of the severity, and of the key: 1 if it is flapping, 1 if it fires; nothing if the message is not in the open pair
--   give up  nothing
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/pairs lib/flaps

local next_argument = reader(ARGV, 0)
local action, interval = next_argument(), tonumber(next_argument())
local now = deployment_time(KEYS[1])
local books = read_books(next_argument, reader(KEYS, 1), now, 0)

local function wait_of(message)
  return math.max(0, message.shown_at + interval - now)
end

local function list(_, _, _, messages)
  local uncounted = {}
  for _, m in ipairs(messages) do
    if m.folded > m.shown_count then
      uncounted[#uncounted + 1], uncounted[#uncounted + 2], uncounted[#uncounted + 3] = m.receipt, m.folded, wait_of(m)
    end
  end
  return uncounted
end

local function begin(book, pair, entry, messages, receipt)
  for _, m in ipairs(messages) do
    if m.receipt == receipt then
      local wait = wait_of(m)
      if wait == 0 then
        m.shown_at, m.shown_count = now, m.folded
        put_pair(book, pair, messages_text(messages), entry.expires)
      end
      local flap = read_flap(book, pair) or {}
      return { wait, m.folded, m.last, m.rank, flap.flapping and 1 or 0, flap.fires and 1 or 0 }
    end
  end
  return {}
end

-- Removes the receipt of a message: no event is folded into a message without one. The message stays in its pair, so the pair stays open.
local function give_up(book, pair, entry, messages, receipt)
  for _, m in ipairs(messages) do
    if m.receipt == receipt then
      m.receipt, m.shown_count = '', m.folded
      put_pair(book, pair, messages_text(messages), entry.expires)
    end
  end
  return {}
end

local act = ({ list = list, begin = begin, ['give up'] = give_up })[action]
local reply = {}
for number in next_argument do
  local book, pair, receipt = books[tonumber(number)], next_argument(), next_argument()
  local entry = read_pair(book, pair)
  reply[#reply + 1] = act(book, pair, entry, read_messages(entry) or {}, receipt)
end
write_books(books)
return reply

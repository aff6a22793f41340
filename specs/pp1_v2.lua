-- Wireshark dissector of PP1, wire version 2, over ZMTP 3.x (mechanism NULL) and TCP.
--
--   tshark -X lua_script:specs/pp1_v2.lua -o tcp.try_heuristic_first:TRUE \
--     -r FILE -Y pp1 -T fields -e pp1.kind -e pp1.step
--
-- A connection is recognised by the ZMTP greeting, or by a PP1 header frame at the
-- start of a segment; the option is for ports that are registered for something else. Filters: pp1.kind, pp1.step and pp1.session_id for every message that
-- has them, pp1.<message>.<field> and pp1.<record>.<field> for the fields of a body,
-- pp1.fault for whatever is wrong. specs/03-wire.md is the normative text; the rules of
-- specs/04-validation.md need more than a packet and are what `pp1 inspect` is for.
-- Parts between "table" and "end" are made from the code by `python -m tests.inspect.tables`.

-- table: lua_limits
local WIRE_VERSION = 2
local HEADER_BYTES = 64
local BODY_BYTES_MAX = 1048576
local PAYLOAD_BYTES_MAX = 4194304
local FRAMES_MAX = 3
-- end

-- table: lua_kinds
local KINDS = {
  [1] = "Hello",
  [2] = "TermsAgreed",
  [3] = "Refuse",
  [4] = "Ping",
  [5] = "Pong",
  [6] = "Nak",
  [10] = "Reset",
  [11] = "Ready",
  [12] = "Step",
  [13] = "Rows",
  [14] = "Completion",
  [15] = "Commit",
  [16] = "Cancel",
  [20] = "Open",
  [21] = "Prepare",
  [22] = "Prepared",
  [23] = "Invalidate",
  [24] = "Invalidated",
  [25] = "Decide",
  [26] = "Verdicts",
  [27] = "Decision",
  [28] = "Applied",
  [40] = "Query",
  [41] = "Info",
  [42] = "Generate",
  [43] = "Tokens",
  [44] = "Finished",
  [45] = "Failed",
  [46] = "Abort",
}
-- end

-- table: lua_structs
local STRUCTS = {
  Hello = {
    {"role", "uint"},
    {"wire_min", "uint"},
    {"wire_max", "uint"},
    {"nonce", "bytes"},
    {"semantics", "string"},
    {"verifier", "string"},
    {"rng_abi", "string"},
    {"representations", "uint[]"},
    {"vocabulary_size", "uint"},
    {"legal_size", "uint"},
    {"vocabulary_hash", "bytes"},
    {"draft_checkpoint", "string"},
    {"draft_native", "bool"},
    {"target_checkpoint", "string"},
    {"processors", "string"},
    {"precision", "string"},
    {"requests_max", "uint"},
    {"depth_max", "uint"},
    {"support_max", "uint"},
    {"frame_bytes_max", "uint"},
    {"staging_bytes", "uint"},
  },
  TermsAgreed = {
    {"nonce", "bytes"},
    {"digest", "bytes"},
  },
  Refuse = {
    {"code", "uint"},
    {"field", "string"},
    {"wanted", "string"},
    {"got", "string"},
  },
  Ping = {
    {"token", "uint"},
  },
  Pong = {
    {"token", "uint"},
  },
  Nak = {
    {"code", "uint"},
    {"field", "string"},
    {"wanted", "string"},
    {"got", "string"},
    {"step", "uint"},
    {"session_id", "bytes"},
  },
  Reset = {
    {"session_id", "bytes"},
    {"request_id", "uint"},
    {"slot", "uint"},
    {"generation", "uint"},
    {"round", "uint"},
    {"reason", "uint"},
    {"base_length", "uint"},
    {"base_digest", "bytes"},
    {"suffix", "tokens"},
    {"digest", "bytes"},
    {"key", "bytes"},
    {"context", "uint"},
  },
  Ready = {
    {"session_id", "bytes"},
    {"generation", "uint"},
    {"length", "uint"},
    {"digest", "bytes"},
  },
  Step = {
    {"step", "uint"},
    {"entries", "StepEntry[]"},
  },
  Rows = {
    {"step", "uint"},
    {"rows", "Row[]"},
  },
  Completion = {
    {"step", "uint"},
    {"entries", "CompletionEntry[]"},
  },
  Commit = {
    {"entries", "CommitEntry[]"},
  },
  Cancel = {
    {"session_id", "bytes"},
    {"generation", "uint"},
    {"reason", "uint"},
  },
  Open = {
    {"session_id", "bytes"},
    {"request_id", "uint"},
    {"slot", "uint"},
    {"owner", "uint"},
    {"session_seed", "bytes"},
    {"prompt", "tokens"},
    {"temperature", "double"},
    {"stop_tokens", "int[]"},
    {"tokens_max", "uint"},
    {"context", "uint"},
    {"digest", "bytes"},
  },
  Prepare = {
    {"step", "uint"},
    {"entries", "PrepareEntry[]"},
  },
  Prepared = {
    {"step", "uint"},
    {"entries", "PrepareEntry[]"},
  },
  Invalidate = {
    {"step", "uint"},
    {"entries", "Invalidation[]"},
  },
  Invalidated = {
    {"step", "uint"},
    {"entries", "Invalidation[]"},
  },
  Decide = {
    {"step", "uint"},
    {"uses", "bool[]"},
  },
  Verdicts = {
    {"step", "uint"},
    {"entries", "VerdictEntry[]"},
  },
  Decision = {
    {"step", "uint"},
    {"entries", "DecisionEntry[]"},
  },
  Applied = {
    {"step", "uint"},
    {"digest", "bytes"},
  },
  Query = {},
  Info = {
    {"target_checkpoint", "string"},
    {"processors", "string"},
    {"vocabulary_size", "uint"},
    {"legal_size", "uint"},
    {"vocabulary_hash", "bytes"},
    {"context_tokens_max", "uint"},
    {"stop_tokens", "int[]"},
    {"requests_max", "uint"},
    {"pair_ready", "bool"},
    {"worker_ready", "bool"},
  },
  Generate = {
    {"key", "uint"},
    {"prompt", "tokens"},
    {"tokens_max", "uint"},
    {"temperature", "double"},
    {"draft_temperature", "double"},
    {"seed", "bytes"},
    {"stop_tokens", "int[]"},
    {"depth", "uint"},
    {"representation", "uint"},
    {"support", "uint"},
  },
  Tokens = {
    {"key", "uint"},
    {"index", "uint"},
    {"tokens", "tokens"},
    {"depth", "uint"},
    {"accepted", "uint"},
    {"reason", "uint"},
  },
  Finished = {
    {"key", "uint"},
    {"finish", "uint"},
    {"token_count", "uint"},
    {"rounds_speculative", "uint"},
    {"rounds_target_only", "uint"},
    {"drafted", "uint"},
    {"accepted", "uint"},
    {"rejected", "uint"},
    {"unverified", "uint"},
    {"accepted_at", "uint[]"},
    {"drafted_at", "uint[]"},
  },
  Failed = {
    {"key", "uint"},
    {"code", "uint"},
    {"field", "string"},
    {"wanted", "string"},
    {"got", "string"},
  },
  Abort = {
    {"key", "uint"},
  },
  StepEntry = {
    {"session_id", "bytes"},
    {"slot", "uint"},
    {"generation", "uint"},
    {"round", "uint"},
    {"position", "uint"},
    {"digest", "bytes"},
    {"depth", "uint"},
    {"temperature", "double"},
    {"representation", "uint"},
    {"support", "uint"},
    {"context", "uint"},
  },
  Row = {
    {"entry", "uint"},
    {"position", "uint"},
    {"token", "int"},
    {"representation", "uint"},
    {"entries", "uint"},
    {"byte_length", "uint"},
    {"checksum", "uint"},
  },
  CompletionEntry = {
    {"session_id", "bytes"},
    {"generation", "uint"},
    {"round", "uint"},
    {"status", "uint"},
    {"row_count", "uint"},
    {"reply_bytes", "uint"},
    {"checksum", "uint"},
  },
  CommitEntry = {
    {"session_id", "bytes"},
    {"generation", "uint"},
    {"round", "uint"},
    {"accepted", "uint"},
    {"last", "int[]"},
    {"position", "uint"},
    {"digest", "bytes"},
  },
  PrepareEntry = {
    {"session_id", "bytes"},
    {"generation", "uint"},
    {"round", "uint"},
    {"status", "uint"},
    {"digest", "bytes"},
  },
  Invalidation = {
    {"session_id", "bytes"},
    {"generation", "uint"},
    {"reason", "uint"},
  },
  VerdictEntry = {
    {"session_id", "bytes"},
    {"generation", "uint"},
    {"round", "uint"},
    {"status", "uint"},
    {"accepted", "uint"},
    {"rejected", "uint"},
    {"unverified", "uint"},
    {"last", "uint"},
    {"finish", "uint"},
    {"tokens", "tokens"},
  },
  DecisionEntry = {
    {"kind", "uint"},
    {"session_id", "bytes"},
    {"generation", "uint"},
    {"round", "uint"},
    {"reason", "uint"},
    {"depth", "uint"},
    {"accepted", "uint"},
    {"rejected", "uint"},
    {"unverified", "uint"},
    {"last", "uint"},
    {"finish", "uint"},
    {"token_count", "uint"},
    {"tokens", "tokens"},
    {"position", "uint"},
    {"digest", "bytes"},
  },
}
-- end

-- table: lua_names
local ROLE = {
  [1] = "worker",
  [2] = "rank_zero",
  [3] = "rank_one",
}
local REPRESENTATION = {
  [1] = "dense_f32",
  [2] = "sparse_f32",
}
local LAST_TOKEN = {
  [0] = "none",
  [1] = "correction",
  [2] = "bonus",
  [3] = "target_only",
}
local FINISH = {
  [0] = "none",
  [1] = "stop",
  [2] = "length",
}
local DECISION_KIND = {
  [0] = "empty",
  [1] = "commit",
  [2] = "end",
}
local CODE = {
  [100] = "not_ours",
  [101] = "wire_version",
  [102] = "header_length",
  [103] = "header_checksum",
  [104] = "frame_count",
  [105] = "body_length",
  [106] = "body_checksum",
  [107] = "payload_length",
  [108] = "kind_unknown",
  [109] = "kind_unexpected",
  [120] = "malformed",
  [121] = "not_canonical",
  [122] = "kind_mismatch",
  [200] = "wire_range",
  [201] = "semantics_mismatch",
  [202] = "verifier_mismatch",
  [203] = "rng_abi_mismatch",
  [204] = "vocabulary_size_mismatch",
  [205] = "vocabulary_hash_mismatch",
  [206] = "draft_mismatch",
  [207] = "target_mismatch",
  [208] = "processors_mismatch",
  [209] = "no_common_representation",
  [210] = "bound_too_small",
  [211] = "staging_too_small",
  [212] = "precision_mismatch",
  [213] = "role_mismatch",
  [214] = "terms_digest_mismatch",
  [215] = "link_unknown",
  [216] = "boot_changed",
  [217] = "not_negotiated",
  [300] = "session_unknown",
  [301] = "generation_stale",
  [302] = "generation_ahead",
  [303] = "round_stale",
  [304] = "round_ahead",
  [305] = "position_mismatch",
  [306] = "prefix_mismatch",
  [307] = "prefix_unknown",
  [308] = "depth_range",
  [309] = "depth_mismatch",
  [310] = "temperature_range",
  [311] = "support_range",
  [312] = "slot_range",
  [313] = "slot_duplicate",
  [314] = "slot_busy",
  [315] = "batch_range",
  [316] = "session_duplicate",
  [317] = "context_mismatch",
  [319] = "session_limit",
  [320] = "prefix_range",
  [321] = "stale_lease",
  [322] = "representation_mismatch",
  [323] = "step_changed",
  [324] = "commit_mismatch",
  [400] = "q_missing",
  [401] = "row_count",
  [402] = "row_position",
  [403] = "row_duplicate",
  [404] = "row_entries",
  [405] = "row_bytes",
  [406] = "row_checksum",
  [407] = "token_range",
  [408] = "id_range",
  [409] = "id_order",
  [410] = "value_bits",
  [411] = "value_zero",
  [412] = "value_dyadic",
  [413] = "mass_wrong",
  [414] = "token_zero_q",
  [415] = "padding_not_zero",
  [416] = "completion_bytes",
  [417] = "completion_checksum",
  [418] = "completion_status",
  [419] = "token_not_drawn",
  [500] = "draft_late",
  [501] = "worker_down",
  [502] = "draft_failed",
  [503] = "breaker_open",
  [504] = "late_round",
  [505] = "reset_pending",
  [600] = "rank_lost",
  [601] = "rank_split",
  [602] = "decision_mismatch",
  [603] = "target_failed",
  [604] = "step_stale",
  [605] = "session_poisoned",
  [606] = "target_late",
  [607] = "prepared_mismatch",
  [700] = "weights_invalid",
  [701] = "allocation_inconsistent",
  [702] = "logits_invalid",
  [703] = "residual_empty",
  [704] = "rng_exhausted",
  [705] = "rng_domain",
  [706] = "rng_range",
  [800] = "prompt_range",
  [801] = "prompt_token",
  [802] = "request_limit",
  [803] = "parameter_range",
  [804] = "cancelled",
  [900] = "config_invalid",
  [901] = "address_in_use",
  [902] = "model_missing",
  [903] = "memory_short",
  [904] = "peer_unreachable",
}
-- end

local MAGIC = "PP1q"
local GREETING_BYTES = 64
local COMMAND_BYTES_MAX = 65536
local LISTED = 16 -- values of a long list that are shown

-- Fields whose numbers have names.
local NAMED = {
  role = ROLE, representation = REPRESENTATION, finish = FINISH, last = LAST_TOKEN,
  kind = DECISION_KIND, code = CODE, reason = CODE, status = CODE,
}
local IN_HEX = { checksum = true }

local pp1 = Proto("pp1", "PP1 wire version 2")

local all_fields = {}

local function field(kind, abbrev, ...)
  local made = ProtoField[kind]("pp1." .. abbrev, ...)
  all_fields[#all_fields + 1] = made
  return made
end

local f = {
  greeting = field("bytes", "zmtp.greeting", "ZMTP greeting"),
  mechanism = field("string", "zmtp.mechanism", "Mechanism"),
  command = field("string", "zmtp.command", "ZMTP command"),
  message = field("none", "message", "PP1 message"),
  header = field("none", "header", "Header"),
  magic = field("string", "magic", "Magic"),
  version = field("uint8", "version", "Wire version"),
  kind = field("uint8", "kind", "Kind", base.DEC, KINDS),
  payload_frames = field("uint8", "payload_frames", "Payload frames"),
  reserved = field("bytes", "reserved", "Reserved"),
  body_bytes = field("uint32", "body_bytes", "Body length"),
  payload_bytes = field("uint32", "payload_bytes", "Payload length"),
  boot_id = field("bytes", "boot_id", "Boot id"),
  link_epoch = field("uint64", "link_epoch", "Link epoch", base.HEX),
  body_checksum = field("uint64", "body_checksum", "Checksum of the body", base.HEX),
  checksum = field("uint64", "checksum", "Checksum of the header", base.HEX),
  body = field("none", "body", "Body"),
  payload = field("bytes", "payload", "Payload"),
  row = field("none", "row", "Row"),
  ids = field("bytes", "row.ids", "Ids"),
  values = field("bytes", "row.q", "q"),
  step = field("uint64", "step", "Step"),
  session_id = field("bytes", "session_id", "Session"),
}

local fault = ProtoExpert.new(
  "pp1.fault", "PP1 fault", expert.group.MALFORMED, expert.severity.ERROR)
pp1.experts = { fault }

local function snake(name)
  return (name:gsub("(%l)(%u)", "%1_%2"):lower())
end

local KIND_OF_TYPE = {
  uint = "uint64", int = "int64", bytes = "bytes", tokens = "bytes", string = "string",
  bool = "bool", double = "double",
}
local struct_fields = {}
for name, fields in pairs(STRUCTS) do
  struct_fields[name] = {}
  for index, entry in ipairs(fields) do
    local own, kind = entry[1], entry[2]
    local abbrev = snake(name) .. "." .. own
    local item = KIND_OF_TYPE[kind]
    if item == "uint64" then
      local display = IN_HEX[own] and base.HEX or base.DEC
      struct_fields[name][index] = field(item, abbrev, own, display)
    else
      struct_fields[name][index] = field(item or "string", abbrev, own)
    end
  end
end
pp1.fields = all_fields

-- XXH3-64 of 56 bytes with the standard secret: the only length that a header needs.
local function u64(high, low)
  return UInt64.new(low, high)
end

local PRIME64_1 = u64(0x9E3779B1, 0x85EBCA87)
local AVALANCHE = u64(0x16566791, 0x9E3779F9)
local SECRET = {
  u64(0xBE4BA423, 0x396CFEB8), u64(0x1CAD21F7, 0x2C81017C), -- bytes 0..15
  u64(0xDB979083, 0xE96DD4DE), u64(0x1F67B3B7, 0xA4A44072), -- 16..31
  u64(0x78E5C0CC, 0x4EE679CB), u64(0x2172FFCC, 0x7DD05A82), -- 32..47
  u64(0x8E2443F7, 0x744608B8), u64(0x4C263A81, 0xE69035E0), -- 48..63
}
local LOW = u64(0, 0xFFFFFFFF)

-- The two halves of the 128-bit product, folded together.
local function fold(a, b)
  local a0, a1, b0, b1 = a:band(LOW), a:rshift(32), b:band(LOW), b:rshift(32)
  local low, middle, other = a0 * b0, a1 * b0, a0 * b1
  local cross = low:rshift(32) + middle:band(LOW) + other
  local high = middle:rshift(32) + cross:rshift(32) + a1 * b1
  return high:bxor(cross:lshift(32):bor(low:band(LOW)))
end

local function xxh3_of_56(range)
  local function mix(offset, secret)
    local low = range(offset, 8):le_uint64():bxor(SECRET[secret])
    local high = range(offset + 8, 8):le_uint64():bxor(SECRET[secret + 1])
    return fold(low, high)
  end
  local sum = UInt64.new(56) * PRIME64_1
  sum = sum + mix(16, 5) + mix(24, 7) + mix(0, 1) + mix(40, 3)
  sum = sum:bxor(sum:rshift(37)) * AVALANCHE
  return sum:bxor(sum:rshift(32))
end

-- MessagePack. Every reader takes and gives an offset into `body`; `error` ends the walk.
local function need(body, offset, size)
  if offset + size > body:len() then
    error({ text = "the body ends within a value", offset = offset })
  end
end

local function sized(body, offset, width)
  need(body, offset + 1, width)
  local size = body(offset + 1, width):uint()
  need(body, offset + 1 + width, size)
  return offset + 1 + width, size
end

local function array_head(body, offset)
  need(body, offset, 1)
  local first = body(offset, 1):uint()
  if first >= 0x90 and first <= 0x9f then
    return first - 0x90, offset + 1
  end
  local width = ({ [0xdc] = 2, [0xdd] = 4 })[first]
  if not width then
    error({ text = string.format("an array was expected, not 0x%02x", first), offset = offset })
  end
  need(body, offset + 1, width)
  return body(offset + 1, width):uint(), offset + 1 + width
end

local SIGNED = { [0xd0] = 1, [0xd1] = 2, [0xd2] = 4, [0xd3] = 8 }
local UNSIGNED = { [0xcc] = 1, [0xcd] = 2, [0xce] = 4, [0xcf] = 8 }
local BIN = { [0xc4] = 1, [0xc5] = 2, [0xc6] = 4 }
local STR = { [0xd9] = 1, [0xda] = 2, [0xdb] = 4 }

-- Type ("int", "uint", "bytes", "string", "bool" or "double"), value, offset after it.
local function scalar(body, offset)
  need(body, offset, 1)
  local first = body(offset, 1):uint()
  if first <= 0x7f then
    return "uint", UInt64.new(first), offset + 1
  elseif first >= 0xe0 then
    return "int", Int64.new(first - 0x100), offset + 1
  elseif first == 0xc2 or first == 0xc3 then
    return "bool", first == 0xc3, offset + 1
  elseif first == 0xcb then
    need(body, offset + 1, 8)
    return "double", body(offset + 1, 8):float(), offset + 9
  elseif UNSIGNED[first] then
    local width = UNSIGNED[first]
    need(body, offset + 1, width)
    return "uint", body(offset + 1, width):uint64(), offset + 1 + width
  elseif SIGNED[first] then
    local width = SIGNED[first]
    need(body, offset + 1, width)
    return "int", body(offset + 1, width):int64(), offset + 1 + width
  elseif BIN[first] then
    local start, size = sized(body, offset, BIN[first])
    return "bytes", size > 0 and body(start, size) or nil, start + size
  elseif STR[first] or (first >= 0xa0 and first <= 0xbf) then
    local start, size = offset + 1, first - 0xa0
    if STR[first] then
      start, size = sized(body, offset, STR[first])
    else
      need(body, start, size)
    end
    return "string", size > 0 and body(start, size):string(ENC_UTF_8) or "", start + size
  end
  error({ text = string.format("type byte 0x%02x has no place here", first), offset = offset })
end

local function fits(wanted, got)
  return wanted == got
    or (wanted == "int" and got == "uint")
    or (wanted == "tokens" and got == "bytes")
end

local function number(value)
  return tonumber(tostring(value))
end

local function listed(values, count)
  local text = table.concat(values, ", ")
  return count > #values and string.format("%s, ... (%d)", text, count) or text
end

local function packed(range)
  if not range then
    return "", 0
  end
  local values, count = {}, math.floor(range:len() / 4)
  for index = 0, math.min(count, LISTED) - 1 do
    values[#values + 1] = tostring(range(4 * index, 4):le_int())
  end
  return listed(values, count)
end

local record

-- Add one field of a body to the tree. `seen` collects what the summary needs.
local function value_of(body, offset, tree, made, name, kind, seen)
  local item_kind = kind:match("^(.*)%[%]$")
  if item_kind and STRUCTS[item_kind] then
    local count, after = array_head(body, offset)
    local branch = tree:add(made, body(offset, after - offset), "")
    branch:set_text(string.format("%s: array of %d", name, count))
    local rows = {}
    for index = 0, count - 1 do
      local title = string.format("%s[%d]", name, index)
      rows[#rows + 1], after = record(body, after, branch, item_kind, title, seen)
    end
    branch:set_len(after - offset)
    seen.records[name] = rows
    return after, nil
  elseif item_kind then
    local count, after = array_head(body, offset)
    local values = {}
    for _ = 1, count do
      local got, value
      got, value, after = scalar(body, after)
      if not fits(item_kind, got) then
        error({ text = string.format("%s: %s, not %s", name, item_kind, got), offset = offset })
      end
      if #values < LISTED then
        values[#values + 1] = tostring(value)
      end
    end
    tree:add(made, body(offset, after - offset), listed(values, count))
    return after, nil
  end
  local got, value, after = scalar(body, offset)
  if not fits(kind, got) then
    error({ text = string.format("%s: %s, not %s", name, kind, got), offset = offset })
  end
  local range = body(offset, after - offset)
  local item
  if got == "bytes" then
    item = value and tree:add(made, value) or tree:add(made, range, ""):set_text(name .. ": none")
    if kind == "tokens" then
      item:append_text(" = " .. packed(value))
    end
    if name == "session_id" and value then
      tree:add(f.session_id, value):set_generated()
      seen.sessions[#seen.sessions + 1] = tostring(value:bytes())
    end
  elseif kind == "int" and got == "uint" then
    item = tree:add(made, range, Int64.new(number(value)))
  else
    item = tree:add(made, range, value)
  end
  local names = NAMED[name]
  if names and got == "uint" and names[number(value)] then
    item:append_text(" (" .. names[number(value)] .. ")")
  end
  if name == "step" then
    tree:add(f.step, range, value):set_generated()
    seen.step = tostring(value)
  end
  return after, value
end

-- The fields of a message or record from `index` on; their values by name.
local function fields_of(body, offset, tree, struct, count, seen)
  local entries = STRUCTS[struct]
  if count ~= #entries then
    local text = string.format("%s: %d fields, not %d", struct, #entries, count)
    error({ text = text, offset = offset })
  end
  local values = {}
  for index, entry in ipairs(entries) do
    offset, values[entry[1]] =
      value_of(body, offset, tree, struct_fields[struct][index], entry[1], entry[2], seen)
  end
  return values, offset
end

record = function(body, offset, tree, struct, title, seen)
  local count, after = array_head(body, offset)
  local branch = tree:add(pp1, body(offset, after - offset), title)
  local values
  values, after = fields_of(body, after, branch, struct, count, seen)
  branch:set_len(after - offset)
  return values, after
end

local function body_of(body, tree, kind, seen)
  local count, offset = array_head(body, 0)
  local got, value
  got, value, offset = scalar(body, offset)
  if got ~= "uint" or number(value) ~= kind then
    error({ text = "KIND_MISMATCH (122): header and body name different kinds", offset = 0 })
  end
  local _
  _, offset = fields_of(body, offset, tree, KINDS[kind], count - 1, seen)
  if offset ~= body:len() then
    error({ text = "bytes after the body", offset = offset })
  end
end

local function payload_of(payload, tree, rows)
  local offset = 0
  for index, row in ipairs(rows) do
    local size, entries = number(row.byte_length), number(row.entries)
    if offset + size > payload:len() then
      tree:add_proto_expert_info(fault, "ROW_BYTES (405): the rows are longer than the payload")
      return
    end
    local title = string.format("row %d: %d bytes", index - 1, size)
    if size > 0 then
      local range = payload(offset, size)
      local branch = tree:add(f.row, range):set_text(title)
      local representation = REPRESENTATION[number(row.representation)]
      if representation == "sparse_f32" and size == 8 * entries then
        branch:add(f.ids, range(0, 4 * entries)):append_text(" = " .. packed(range(0, 4 * entries)))
        branch:add(f.values, range(4 * entries, 4 * entries))
      elseif representation == "dense_f32" and size == 4 * entries then
        branch:add(f.values, range)
      else
        branch:add_proto_expert_info(fault, "ROW_BYTES (405): entries and length do not fit")
      end
    end
    offset = offset + size
  end
  if offset ~= payload:len() then
    tree:add_proto_expert_info(fault, "ROW_BYTES (405): the payload is longer than the rows")
  end
end

-- The header's fields; its kind if the rest of the message may be read.
local function header_of(header, tree, frames)
  local branch = tree:add(f.header, header)
  local function wrong(text)
    branch:add_proto_expert_info(fault, text)
  end
  if header:len() < 6 or header(0, 4):string() ~= MAGIC then
    wrong("NOT_OURS (100): the frame does not start with the PP1 magic")
    return nil
  end
  branch:add(f.magic, header(0, 4))
  branch:add(f.version, header(4, 1))
  branch:add(f.kind, header(5, 1))
  if header(4, 1):uint() ~= WIRE_VERSION then
    wrong("WIRE_VERSION (101): another wire version")
    return nil
  elseif header:len() ~= HEADER_BYTES then
    wrong("HEADER_LENGTH (102): the header frame is not 64 bytes")
    return nil
  end
  branch:add(f.payload_frames, header(6, 1))
  branch:add(f.reserved, header(7, 1))
  branch:add_le(f.body_bytes, header(8, 4))
  branch:add_le(f.payload_bytes, header(12, 4))
  branch:add(f.boot_id, header(16, 16))
  branch:add_le(f.link_epoch, header(32, 8))
  branch:add_le(f.body_checksum, header(40, 8))
  branch:add(f.reserved, header(48, 8))
  branch:add_le(f.checksum, header(56, 8))
  if header(56, 8):le_uint64() ~= xxh3_of_56(header(0, 56)) then
    wrong("HEADER_CHECKSUM (103): the header checksum does not match")
  elseif header(7, 1):uint() ~= 0 or header(48, 8):le_uint64() ~= UInt64.new(0) then
    wrong("NOT_CANONICAL (121): reserved bytes are not zero")
  elseif header(6, 1):uint() > 1 or (header(6, 1):uint() == 0 and header(12, 4):le_uint() > 0) then
    wrong("FRAME_COUNT (104): the header announces a wrong number of payload frames")
  elseif header(8, 4):le_uint() > BODY_BYTES_MAX then
    wrong("BODY_LENGTH (105): the header announces too long a body")
  elseif header(12, 4):le_uint() > PAYLOAD_BYTES_MAX then
    wrong("PAYLOAD_LENGTH (107): the header announces too long a payload")
  elseif #frames ~= 2 + header(6, 1):uint() then
    wrong(string.format("FRAME_COUNT (104): %d frames", #frames))
  elseif not frames[2] or frames[2].size ~= header(8, 4):le_uint() then
    wrong("BODY_LENGTH (105): the body does not have the announced length")
  elseif frames[3] and frames[3].size ~= header(12, 4):le_uint() then
    wrong("PAYLOAD_LENGTH (107): the payload does not have the announced length")
  end
  return header(5, 1):uint()
end

-- Wireshark keeps what an earlier part of the same packet has shown.
local function append_info(pinfo, text)
  local separator = tostring(pinfo.cols.info) == "" and "" or ", "
  pinfo.cols.info:append(separator .. text)
end

local function message(tvb, start, after, frames, pinfo, tree)
  local branch = tree:add(f.message, tvb(start, after - start))
  local seen = { sessions = {}, records = {} }
  local kind
  if frames[1].size > 0 then
    kind = header_of(tvb(frames[1].at, frames[1].size), branch, frames)
  else
    branch:add_proto_expert_info(fault, "NOT_OURS (100): an empty frame")
  end
  local name = kind and (KINDS[kind] or string.format("kind %d", kind)) or "not PP1"
  if kind and not KINDS[kind] then
    branch:add_proto_expert_info(fault, "KIND_UNKNOWN (108): the kind is not registered")
  end
  if frames[2] and frames[2].size > 0 then
    local range = tvb(frames[2].at, frames[2].size)
    local body = branch:add(f.body, range)
    if KINDS[kind] then
      local ok, problem = pcall(body_of, range, body, kind, seen)
      if not ok then
        if type(problem) ~= "table" then
          error(problem, 0)
        end
        local text = problem.text
        if not text:find("^KIND_MISMATCH") then
          text = "MALFORMED (120): " .. text
        end
        body:add_proto_expert_info(fault, string.format("%s at byte %d", text, problem.offset))
      end
    end
  end
  if frames[3] and frames[3].size > 0 then
    local range = tvb(frames[3].at, frames[3].size)
    local payload = branch:add(f.payload, range)
    if KINDS[kind] == "Rows" and seen.records.rows then
      payload_of(range, payload, seen.records.rows)
    elseif kind then
      payload:add_proto_expert_info(fault, "FRAME_COUNT (104): a payload without Rows")
    end
  end
  local summary = name .. (seen.step and " step " .. seen.step or "")
  branch:set_text("PP1 " .. summary)
  append_info(pinfo, summary)
end

-- One frame at `offset`: its flags and place; or how many bytes are missing; or a fault.
local function frame_at(tvb, offset)
  local left = tvb:len() - offset
  if left < 1 then
    return nil, 2
  end
  local flags = tvb(offset, 1):uint()
  local more, long, command = flags % 2 == 1, flags % 4 >= 2, flags >= 4
  if flags > 7 or (command and more) then
    return nil, nil, string.format("not a ZMTP frame: flags 0x%02x", flags)
  end
  local head = long and 9 or 2
  if left < head then
    return nil, head - left
  end
  local size = long and tvb(offset + 1, 8):uint64() or UInt64.new(tvb(offset + 1, 1):uint())
  local most = command and COMMAND_BYTES_MAX or PAYLOAD_BYTES_MAX
  if size > UInt64.new(most) then
    return nil, nil, string.format("a frame of %s bytes, where %d are allowed", tostring(size), most)
  end
  size = size:tonumber()
  if left < head + size then
    return nil, head + size - left
  end
  return { at = offset + head, size = size, command = command, more = more }
end

-- What stands at `offset`: the offset after it, or nil and how many bytes are missing.
local function unit(tvb, offset, pinfo, tree)
  local left = tvb:len() - offset
  if tvb(offset, 1):uint() == 0xff and (left < 10 or tvb(offset + 9, 1):uint() == 0x7f) then
    if left < GREETING_BYTES then
      return nil, GREETING_BYTES - left
    end
    local range = tvb(offset, GREETING_BYTES)
    local branch = tree:add(f.greeting, range)
    branch:add(f.mechanism, range(12, 20), range(12, 20):stringz())
    append_info(pinfo, "ZMTP greeting")
    return offset + GREETING_BYTES
  end
  local start, frames, count = offset, {}, 0
  while true do
    local frame, missing, problem = frame_at(tvb, offset)
    if problem then
      tree:add_proto_expert_info(fault, problem)
      return tvb:len()
    elseif not frame then
      return nil, missing
    end
    offset = frame.at + frame.size
    if frame.command then
      local size = frame.size > 0 and tvb(frame.at, 1):uint() or 0
      if size > 0 and size < frame.size then
        tree:add(f.command, tvb(frame.at + 1, size))
        append_info(pinfo, "ZMTP " .. tvb(frame.at + 1, size):string())
      end
      return offset
    end
    count = count + 1
    if count <= FRAMES_MAX + 1 then
      frames[count] = frame
    end
    if not frame.more then
      message(tvb, start, offset, frames, pinfo, tree)
      return offset
    end
  end
end

function pp1.dissector(tvb, pinfo, root)
  pinfo.cols.protocol = "PP1"
  pinfo.cols.info:clear()
  local tree = root:add(pp1, tvb())
  local offset = 0
  while offset < tvb:len() do
    local after, missing = unit(tvb, offset, pinfo, tree)
    if not after then
      pinfo.desegment_offset = offset
      pinfo.desegment_len = missing
      break
    end
    offset = after
  end
  return tvb:len()
end

local function recognise(tvb, pinfo, root)
  local size = tvb:len()
  local greeting = size >= 10 and tvb(0, 1):uint() == 0xff and tvb(9, 1):uint() == 0x7f
  local header = size >= 6 and tvb(0, 2):uint() == 0x0140 and tvb(2, 4):string() == MAGIC
  if not (greeting or header) then
    return false
  end
  pinfo.conversation = pp1
  pp1.dissector(tvb, pinfo, root)
  return true
end

pp1:register_heuristic("tcp", recognise)
DissectorTable.get("tcp.port"):add_for_decode_as(pp1)

meta:
  id: pp1_v2
  title: PP1 message, wire version 2
  license: Apache-2.0
  ks-version: '0.11'
  endian: be
doc: |
  The frames of one PP1 message back to back: header, body and, with Rows, the payload.
  Over ZeroMQ each is a frame of its own. specs/03-wire.md is the normative text.

  Kaitai cannot say everything: checksums, canonical encodings (W-6) and every rule of
  specs/04-validation.md are left to the reader. Parts between "table" and "end" are made
  from the code by `python -m tests.inspect.tables`.
seq:
  - id: header
    type: header
  - id: body
    type: body
    size: header.body_bytes
  - id: payload
    type: payload
    size: header.payload_bytes
    if: header.payload_frames == 1
types:
  header:
    doc: 64 bytes, little endian.
    seq:
      - id: magic
        contents: PP1q
      - id: version
        type: u1
        valid: 2
      - id: kind
        type: u1
        enum: message_kind
      - id: payload_frames
        type: u1
        valid:
          max: 1
      - id: reserved
        contents: [0]
      # table: kaitai_bounds
      - id: body_bytes
        type: u4le
        valid:
          max: 1048576
      - id: payload_bytes
        type: u4le
        valid:
          max: 4194304
      # end
      - id: boot_id
        size: 16
      - id: link_epoch
        type: u8le
      - id: body_checksum
        type: u8le
        doc: XXH3-64 of the body.
      - id: reserved_tail
        contents: [0, 0, 0, 0, 0, 0, 0, 0]
      - id: checksum
        type: u8le
        doc: XXH3-64 of bytes 0..55.
  body:
    doc: A MessagePack array of the kind and the fields of that kind.
    seq:
      - id: head
        type: mp_array
      - id: kind
        type: mp_int
      - id: fields
        type:
          switch-on: kind.value
          cases:
            # table: kaitai_cases
            1: hello
            2: terms_agreed
            3: refuse
            4: ping
            5: pong
            6: nak
            10: reset
            11: ready
            12: step
            13: rows
            14: completion
            15: commit
            16: cancel
            20: open
            21: prepare
            22: prepared
            23: invalidate
            24: invalidated
            25: decide
            26: verdicts
            27: decision
            28: applied
            40: query
            41: info
            42: generate
            43: tokens
            44: finished
            45: failed
            46: abort
            # end
      - id: rest
        size-eos: true
        valid:
          expr: _.size == 0
  payload:
    doc: The payloads of the rows, without gaps.
    seq:
      - id: rows
        type: row_payload(_index)
        repeat: expr
        repeat-expr: _root.body.fields.as<rows>.rows.items.size
  row_payload:
    params:
      - id: index
        type: s4
    seq:
      - id: q
        size: row.byte_length.value
        type:
          switch-on: row.representation.value
          cases:
            1: dense_row(row.entries.value)
            2: sparse_row(row.entries.value)
    instances:
      row:
        value: _root.body.fields.as<rows>.rows.items[index]
  dense_row:
    params:
      - id: entries
        type: s4
        doc: The size of the vocabulary, padding included.
    seq:
      - id: values
        type: f4le
        doc: q of every id, a whole number of 2^-24.
        repeat: expr
        repeat-expr: entries
  sparse_row:
    params:
      - id: entries
        type: s4
    seq:
      - id: ids
        type: s4le
        doc: Strictly ascending.
        repeat: expr
        repeat-expr: entries
      - id: values
        type: f4le
        doc: q of each id, a positive whole number of 2^-24.
        repeat: expr
        repeat-expr: entries
  mp_int:
    seq:
      - id: head
        type: u1
        valid:
          expr: _ <= 0x7f or (_ >= 0xcc and _ <= 0xd3) or _ >= 0xe0
      - id: wide
        type:
          switch-on: head
          cases:
            0xcc: u1
            0xcd: u2
            0xce: u4
            0xcf: u8
            0xd0: s1
            0xd1: s2
            0xd2: s4
            0xd3: s8
        if: head >= 0xcc and head <= 0xd3
    instances:
      value:
        value: 'head <= 0x7f ? head : head >= 0xe0 ? head - 0x100 : wide'
  mp_bin:
    seq:
      - id: head
        type: u1
        valid:
          any-of: [0xc4, 0xc5, 0xc6]
      - id: size
        type:
          switch-on: head
          cases:
            0xc4: u1
            0xc5: u2
            0xc6: u4
      - id: value
        size: size
  mp_str:
    seq:
      - id: head
        type: u1
        valid:
          expr: (_ >= 0xa0 and _ <= 0xbf) or (_ >= 0xd9 and _ <= 0xdb)
      - id: wide
        type:
          switch-on: head
          cases:
            0xd9: u1
            0xda: u2
            0xdb: u4
        if: head >= 0xd9
      - id: value
        type: str
        encoding: UTF-8
        size: 'head >= 0xd9 ? wide : head & 0x1f'
  mp_bool:
    seq:
      - id: head
        type: u1
        valid:
          any-of: [0xc2, 0xc3]
    instances:
      value:
        value: head == 0xc3
  mp_float:
    seq:
      - id: head
        contents: [0xcb]
      - id: value
        type: f8
  mp_array:
    doc: The head of an array; its elements follow.
    seq:
      - id: head
        type: u1
        valid:
          expr: (_ >= 0x90 and _ <= 0x9f) or _ == 0xdc or _ == 0xdd
      - id: wide
        type:
          switch-on: head
          cases:
            0xdc: u2
            0xdd: u4
        if: head >= 0xdc
    instances:
      count:
        value: 'head >= 0xdc ? wide : head & 0x0f'
  # table: kaitai_types
  hello:
    seq:
      - id: role
        type: mp_int
      - id: wire_min
        type: mp_int
      - id: wire_max
        type: mp_int
      - id: nonce
        type: mp_bin
      - id: semantics
        type: mp_str
      - id: verifier
        type: mp_str
      - id: rng_abi
        type: mp_str
      - id: representations
        type: mp_int_array
      - id: vocabulary_size
        type: mp_int
      - id: legal_size
        type: mp_int
      - id: vocabulary_hash
        type: mp_bin
      - id: draft_checkpoint
        type: mp_str
      - id: draft_native
        type: mp_bool
      - id: target_checkpoint
        type: mp_str
      - id: processors
        type: mp_str
      - id: precision
        type: mp_str
      - id: requests_max
        type: mp_int
      - id: depth_max
        type: mp_int
      - id: support_max
        type: mp_int
      - id: frame_bytes_max
        type: mp_int
      - id: staging_bytes
        type: mp_int
  terms_agreed:
    seq:
      - id: nonce
        type: mp_bin
      - id: digest
        type: mp_bin
  refuse:
    seq:
      - id: code
        type: mp_int
      - id: field
        type: mp_str
      - id: wanted
        type: mp_str
      - id: got
        type: mp_str
  ping:
    seq:
      - id: token
        type: mp_int
  pong:
    seq:
      - id: token
        type: mp_int
  nak:
    seq:
      - id: code
        type: mp_int
      - id: field
        type: mp_str
      - id: wanted
        type: mp_str
      - id: got
        type: mp_str
      - id: step
        type: mp_int
      - id: session_id
        type: mp_bin
  reset:
    seq:
      - id: session_id
        type: mp_bin
      - id: request_id
        type: mp_int
      - id: slot
        type: mp_int
      - id: generation
        type: mp_int
      - id: round
        type: mp_int
      - id: reason
        type: mp_int
      - id: base_length
        type: mp_int
      - id: base_digest
        type: mp_bin
      - id: suffix
        type: mp_bin
      - id: digest
        type: mp_bin
      - id: key
        type: mp_bin
      - id: context
        type: mp_int
  ready:
    seq:
      - id: session_id
        type: mp_bin
      - id: generation
        type: mp_int
      - id: length
        type: mp_int
      - id: digest
        type: mp_bin
  step:
    seq:
      - id: step
        type: mp_int
      - id: entries
        type: step_entry_array
  rows:
    seq:
      - id: step
        type: mp_int
      - id: rows
        type: row_array
  completion:
    seq:
      - id: step
        type: mp_int
      - id: entries
        type: completion_entry_array
  commit:
    seq:
      - id: entries
        type: commit_entry_array
  cancel:
    seq:
      - id: session_id
        type: mp_bin
      - id: generation
        type: mp_int
      - id: reason
        type: mp_int
  open:
    seq:
      - id: session_id
        type: mp_bin
      - id: request_id
        type: mp_int
      - id: slot
        type: mp_int
      - id: owner
        type: mp_int
      - id: session_seed
        type: mp_bin
      - id: prompt
        type: mp_bin
      - id: temperature
        type: mp_float
      - id: stop_tokens
        type: mp_int_array
      - id: tokens_max
        type: mp_int
      - id: context
        type: mp_int
      - id: digest
        type: mp_bin
  prepare:
    seq:
      - id: step
        type: mp_int
      - id: entries
        type: prepare_entry_array
  prepared:
    seq:
      - id: step
        type: mp_int
      - id: entries
        type: prepare_entry_array
  invalidate:
    seq:
      - id: step
        type: mp_int
      - id: entries
        type: invalidation_array
  invalidated:
    seq:
      - id: step
        type: mp_int
      - id: entries
        type: invalidation_array
  decide:
    seq:
      - id: step
        type: mp_int
      - id: uses
        type: mp_bool_array
  verdicts:
    seq:
      - id: step
        type: mp_int
      - id: entries
        type: verdict_entry_array
  decision:
    seq:
      - id: step
        type: mp_int
      - id: entries
        type: decision_entry_array
  applied:
    seq:
      - id: step
        type: mp_int
      - id: digest
        type: mp_bin
  query:
    seq: []
  info:
    seq:
      - id: target_checkpoint
        type: mp_str
      - id: processors
        type: mp_str
      - id: vocabulary_size
        type: mp_int
      - id: legal_size
        type: mp_int
      - id: vocabulary_hash
        type: mp_bin
      - id: context_tokens_max
        type: mp_int
      - id: stop_tokens
        type: mp_int_array
      - id: requests_max
        type: mp_int
      - id: pair_ready
        type: mp_bool
      - id: worker_ready
        type: mp_bool
  generate:
    seq:
      - id: key
        type: mp_int
      - id: prompt
        type: mp_bin
      - id: tokens_max
        type: mp_int
      - id: temperature
        type: mp_float
      - id: draft_temperature
        type: mp_float
      - id: seed
        type: mp_bin
      - id: stop_tokens
        type: mp_int_array
      - id: depth
        type: mp_int
      - id: representation
        type: mp_int
      - id: support
        type: mp_int
  tokens:
    seq:
      - id: key
        type: mp_int
      - id: index
        type: mp_int
      - id: tokens
        type: mp_bin
      - id: depth
        type: mp_int
      - id: accepted
        type: mp_int
      - id: reason
        type: mp_int
  finished:
    seq:
      - id: key
        type: mp_int
      - id: finish
        type: mp_int
      - id: token_count
        type: mp_int
      - id: rounds_speculative
        type: mp_int
      - id: rounds_target_only
        type: mp_int
      - id: drafted
        type: mp_int
      - id: accepted
        type: mp_int
      - id: rejected
        type: mp_int
      - id: unverified
        type: mp_int
      - id: accepted_at
        type: mp_int_array
      - id: drafted_at
        type: mp_int_array
  failed:
    seq:
      - id: key
        type: mp_int
      - id: code
        type: mp_int
      - id: field
        type: mp_str
      - id: wanted
        type: mp_str
      - id: got
        type: mp_str
  abort:
    seq:
      - id: key
        type: mp_int
  step_entry:
    seq:
      - id: head
        type: mp_array
      - id: session_id
        type: mp_bin
      - id: slot
        type: mp_int
      - id: generation
        type: mp_int
      - id: round
        type: mp_int
      - id: position
        type: mp_int
      - id: digest
        type: mp_bin
      - id: depth
        type: mp_int
      - id: temperature
        type: mp_float
      - id: representation
        type: mp_int
      - id: support
        type: mp_int
      - id: context
        type: mp_int
  row:
    seq:
      - id: head
        type: mp_array
      - id: entry
        type: mp_int
      - id: position
        type: mp_int
      - id: token
        type: mp_int
      - id: representation
        type: mp_int
      - id: entries
        type: mp_int
      - id: byte_length
        type: mp_int
      - id: checksum
        type: mp_int
  completion_entry:
    seq:
      - id: head
        type: mp_array
      - id: session_id
        type: mp_bin
      - id: generation
        type: mp_int
      - id: round
        type: mp_int
      - id: status
        type: mp_int
      - id: row_count
        type: mp_int
      - id: reply_bytes
        type: mp_int
      - id: checksum
        type: mp_int
  commit_entry:
    seq:
      - id: head
        type: mp_array
      - id: session_id
        type: mp_bin
      - id: generation
        type: mp_int
      - id: round
        type: mp_int
      - id: accepted
        type: mp_int
      - id: last
        type: mp_int_array
      - id: position
        type: mp_int
      - id: digest
        type: mp_bin
  prepare_entry:
    seq:
      - id: head
        type: mp_array
      - id: session_id
        type: mp_bin
      - id: generation
        type: mp_int
      - id: round
        type: mp_int
      - id: status
        type: mp_int
      - id: digest
        type: mp_bin
  invalidation:
    seq:
      - id: head
        type: mp_array
      - id: session_id
        type: mp_bin
      - id: generation
        type: mp_int
      - id: reason
        type: mp_int
  verdict_entry:
    seq:
      - id: head
        type: mp_array
      - id: session_id
        type: mp_bin
      - id: generation
        type: mp_int
      - id: round
        type: mp_int
      - id: status
        type: mp_int
      - id: accepted
        type: mp_int
      - id: rejected
        type: mp_int
      - id: unverified
        type: mp_int
      - id: last
        type: mp_int
      - id: finish
        type: mp_int
      - id: tokens
        type: mp_bin
  decision_entry:
    seq:
      - id: head
        type: mp_array
      - id: kind
        type: mp_int
      - id: session_id
        type: mp_bin
      - id: generation
        type: mp_int
      - id: round
        type: mp_int
      - id: reason
        type: mp_int
      - id: depth
        type: mp_int
      - id: accepted
        type: mp_int
      - id: rejected
        type: mp_int
      - id: unverified
        type: mp_int
      - id: last
        type: mp_int
      - id: finish
        type: mp_int
      - id: token_count
        type: mp_int
      - id: tokens
        type: mp_bin
      - id: position
        type: mp_int
      - id: digest
        type: mp_bin
  commit_entry_array:
    seq:
      - id: head
        type: mp_array
      - id: items
        type: commit_entry
        repeat: expr
        repeat-expr: head.count
  completion_entry_array:
    seq:
      - id: head
        type: mp_array
      - id: items
        type: completion_entry
        repeat: expr
        repeat-expr: head.count
  decision_entry_array:
    seq:
      - id: head
        type: mp_array
      - id: items
        type: decision_entry
        repeat: expr
        repeat-expr: head.count
  invalidation_array:
    seq:
      - id: head
        type: mp_array
      - id: items
        type: invalidation
        repeat: expr
        repeat-expr: head.count
  mp_bool_array:
    seq:
      - id: head
        type: mp_array
      - id: items
        type: mp_bool
        repeat: expr
        repeat-expr: head.count
  mp_int_array:
    seq:
      - id: head
        type: mp_array
      - id: items
        type: mp_int
        repeat: expr
        repeat-expr: head.count
  prepare_entry_array:
    seq:
      - id: head
        type: mp_array
      - id: items
        type: prepare_entry
        repeat: expr
        repeat-expr: head.count
  row_array:
    seq:
      - id: head
        type: mp_array
      - id: items
        type: row
        repeat: expr
        repeat-expr: head.count
  step_entry_array:
    seq:
      - id: head
        type: mp_array
      - id: items
        type: step_entry
        repeat: expr
        repeat-expr: head.count
  verdict_entry_array:
    seq:
      - id: head
        type: mp_array
      - id: items
        type: verdict_entry
        repeat: expr
        repeat-expr: head.count
  # end
enums:
  # table: kaitai_enums
  message_kind:
    1: hello
    2: terms_agreed
    3: refuse
    4: ping
    5: pong
    6: nak
    10: reset
    11: ready
    12: step
    13: rows
    14: completion
    15: commit
    16: cancel
    20: open
    21: prepare
    22: prepared
    23: invalidate
    24: invalidated
    25: decide
    26: verdicts
    27: decision
    28: applied
    40: query
    41: info
    42: generate
    43: tokens
    44: finished
    45: failed
    46: abort
  role:
    1: worker
    2: rank_zero
    3: rank_one
  representation:
    1: dense_f32
    2: sparse_f32
  last_token:
    0: none
    1: correction
    2: bonus
    3: target_only
  finish:
    0: none
    1: stop
    2: length
  decision_kind:
    0: empty
    1: commit
    2: end
  code:
    100: not_ours
    101: wire_version
    102: header_length
    103: header_checksum
    104: frame_count
    105: body_length
    106: body_checksum
    107: payload_length
    108: kind_unknown
    109: kind_unexpected
    120: malformed
    121: not_canonical
    122: kind_mismatch
    200: wire_range
    201: semantics_mismatch
    202: verifier_mismatch
    203: rng_abi_mismatch
    204: vocabulary_size_mismatch
    205: vocabulary_hash_mismatch
    206: draft_mismatch
    207: target_mismatch
    208: processors_mismatch
    209: no_common_representation
    210: bound_too_small
    211: staging_too_small
    212: precision_mismatch
    213: role_mismatch
    214: terms_digest_mismatch
    215: link_unknown
    216: boot_changed
    217: not_negotiated
    300: session_unknown
    301: generation_stale
    302: generation_ahead
    303: round_stale
    304: round_ahead
    305: position_mismatch
    306: prefix_mismatch
    307: prefix_unknown
    308: depth_range
    309: depth_mismatch
    310: temperature_range
    311: support_range
    312: slot_range
    313: slot_duplicate
    314: slot_busy
    315: batch_range
    316: session_duplicate
    317: context_mismatch
    319: session_limit
    320: prefix_range
    321: stale_lease
    322: representation_mismatch
    323: step_changed
    324: commit_mismatch
    400: q_missing
    401: row_count
    402: row_position
    403: row_duplicate
    404: row_entries
    405: row_bytes
    406: row_checksum
    407: token_range
    408: id_range
    409: id_order
    410: value_bits
    411: value_zero
    412: value_dyadic
    413: mass_wrong
    414: token_zero_q
    415: padding_not_zero
    416: completion_bytes
    417: completion_checksum
    418: completion_status
    419: token_not_drawn
    500: draft_late
    501: worker_down
    502: draft_failed
    503: breaker_open
    504: late_round
    505: reset_pending
    600: rank_lost
    601: rank_split
    602: decision_mismatch
    603: target_failed
    604: step_stale
    605: session_poisoned
    606: target_late
    607: prepared_mismatch
    700: weights_invalid
    701: allocation_inconsistent
    702: logits_invalid
    703: residual_empty
    704: rng_exhausted
    705: rng_domain
    706: rng_range
    800: prompt_range
    801: prompt_token
    802: request_limit
    803: parameter_range
    804: cancelled
    900: config_invalid
    901: address_in_use
    902: model_missing
    903: memory_short
    904: peer_unreachable
  # end

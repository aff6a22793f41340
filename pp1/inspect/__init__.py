"""``pp1 inspect``: what stands in PP1 bytes, field by field, and which rule they break.

Everything here but ``command`` and ``output`` turns bytes into values and prints
nothing. ``capture`` reads pcap and pcapng files, ``connections`` puts TCP streams
together, ``zmtp`` splits them into frames, ``message`` and ``rows`` annotate the
frames of one message, with ``link`` for what earlier messages say about it.
"""

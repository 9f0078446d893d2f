# edit.bash - for bats files that damage checkpoints of one file.

# Change the header, the bytes of tensors, or both, of CHECKPOINT's file.
edit() { # CHECKPOINT CODE
    /usr/bin/python3 - "$1/model.safetensors" "$2" <<'P'
import json, struct, sys
b = open(sys.argv[1], "rb").read()
n, = struct.unpack("<Q", b[:8])
head, data = json.loads(b[8:8 + n]), bytearray(b[8 + n:])
exec(sys.argv[2])
h = json.dumps(head).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(h)) + h + data)
P
}

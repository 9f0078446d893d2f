#!/bin/bash
# layer_model.sh DIR LAYERS: make DIR, a model of random layers of a real size (SIZE=7b:
# Llama-7B's, 1b, 8b, 70b), with the tokenizer of MODEL, which is of the same family, and
# its vocabulary, or one of VOCABULARY tokens (Llama 3's: 128256).
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=${HELPER:-$PWD/build/release/tests/helper}:$PATH # mkmodel
model=${MODEL:-examples/llama-4m} dir=$1 layers=$2
case ${SIZE:-7b} in
1b) hidden=2048 inner=5632 heads=32 kv=4 ;;
7b) hidden=4096 inner=11008 heads=32 kv=32 ;;
8b) hidden=4096 inner=14336 heads=32 kv=8 ;;
70b) hidden=8192 inner=28672 heads=64 kv=8 ;;
*) echo "SIZE: 1b, 7b, 8b or 70b" >&2; exit 64 ;;
esac

mkdir "$dir"
cp "$model"/tokenizer* "$model/config.json" "$dir"
set_member() { # NAME VALUE: in config.json
    sed -i -E "s/(\"$1\": )[^,]*/\1$2/" "$dir/config.json"
}
set_member hidden_size $hidden
set_member intermediate_size $inner
set_member num_attention_heads $heads
set_member num_key_value_heads $kv
set_member head_dim $((hidden / heads))
set_member num_hidden_layers "$layers"
[ -z "${VOCABULARY:-}" ] || set_member vocab_size "$VOCABULARY"
vocabulary=$(sed -nE 's/.*"vocab_size": ([0-9]+).*/\1/p' "$dir/config.json")
mkmodel "$dir/model.safetensors" "$vocabulary" $hidden $inner $heads $kv \
    "$layers"

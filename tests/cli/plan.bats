#!/usr/bin/env bats
# forge-plan(1) as a user meets it.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    model=$BATS_TEST_DIRNAME/../../examples/llama-4m
}

value() { forge-plan "${@:2}" "$model" | sed -n "s/^$1=//p"; }

@test "what the example model takes" {
    # Its config: 4 layers, hidden 256, intermediate 768, 4 heads of 64, 2 for
    # keys and values, 2048 words, untied.
    linears=$((256 * 256 * 2 + 256 * 128 * 2 + 256 * 768 * 3))
    [ "$(value layers)" -eq 4 ]
    [ "$(value modules)" -eq 28 ]
    [ "$(value quantized)" -eq $((4 * linears)) ]
    [ "$(value parameters)" -eq \
        $((4 * (linears + 2 * 256) + 256 + 2 * 2048 * 256)) ]
    [ "$(value bytes_in)" -eq $((2 * $(value parameters))) ]
    [ "$(value hessian_bytes)" -eq $((768 * 769 / 2 * 4)) ]
    # codes of 7 linears, in rooms of 64 KiB times a power of two; 4 Hessians, 4 cross moments
    [ "$(value lent_bytes)" -eq $(((4 * 64 + 3 * 128) * 1024 +
        4 * (3 * 256 * 257 / 2 + 768 * 769 / 2 + 3 * 256 * 256 + 256 * 768))) ]
}

@test "stops of a run in parts: moments of H and of a cross moment, shares, operations" {
    forge-plan --parts 2 "$model" >stops
    [ "$(wc -l <stops)" -eq 16 ]
    [ "$(jq -c 'select(.layer == 3) | [.point, .shares, .moments]' stops | xargs)" = "[attn_in,1,$((4 * (256 * 257 / 2 + 256 * 256)))] \
[attn_out,1,$((4 * (256 * 257 / 2 + 256 * 256)))] [mlp_in,1,$((4 * (256 * 257 / 2 + 256 * 256)))] \
[mlp_mid,1,$((4 * (768 * 769 / 2 + 256 * 768)))]" ]
    # what the plan of the whole model says
    [ "$(jq -s 'map(.forward / 2 + .sums) | add' stops)" -eq \
        $(($(value token_flops) + 2 * 4 * 256 * (256 + 256 + 256 + 768))) ]
    [ "$(jq -s '(map(.solve + .factor) | add) - '"$(value default_flops) - $(value target_flops)"' | fabs < 10' stops)" = true ]
}

@test "operations of calibration, with a second stream, too" {
    linears=$((256 * 256 * 2 + 256 * 128 * 2 + 256 * 768 * 3))
    [ "$(value token_flops)" -eq \
        $((4 * (2 * linears + 3 * 256 * 256 + 768 * 768))) ]
    # Drift of what q and gate read, the wanted outputs of o and down.
    [ "$(value second_flops)" -eq \
        $((4 * (2 * linears + 2 * 256 * (3 * 256 + 768)))) ]
    # Two layers of eight experts of 256 x 384, two a token, which run on the
    # original's choice and on ours; 4 heads of 32, 2 for keys and values.
    model=mixture
    python3 "$BATS_TEST_DIRNAME/../reference/moe.py" many mixture 8
    attention=$((256 * 128 + 2 * 256 * 64 + 128 * 256))
    experts=$((2 * 3 * 256 * 384))
    cross=$((256 * 256 + 128 * 256 + 2 * (256 * 256 + 384 * 256)))
    [ "$(value second_flops)" -eq \
        $((2 * 2 * (attention + 2 * experts + cross))) ]
}

@test "operations of solving rows together: o, down, and experts' down" {
    [ "$(value fisher_flops)" -eq \
        $((4 * 6 * 2 * (256 * 256 * 512 + 256 * 768 * 1024))) ]
    model=mixture
    python3 "$BATS_TEST_DIRNAME/../reference/moe.py" many mixture 8
    [ "$(value fisher_flops)" -eq \
        $((2 * 2 * (6 * 128 * 256 * 384 + 2 * 8 * 384 * 256 * 640))) ]
}

# Orders: a factor of each input (C^3 / 3) and a pass over all pairs of inputs
# of each linear (O C^2), the least that GPTQ computes; another such pass says
# what round-to-nearest loses, of all rows of linears this small.
@test "operations of solving, by effort" {
    linears=$((256 * 256 * 2 + 256 * 128 * 2 + 256 * 768 * 3))
    inputs=$((3 * 256 * 256 * 256 + 768 * 768 * 768))
    pairs=$(((2 * 256 + 2 * 128 + 2 * 768) * 256 * 256 + 256 * 768 * 768))
    [ "$(value fast_flops)" -eq $((4 * (inputs / 3 + 2 * pairs))) ]
    # Sixteen candidates of each group in one order; 48 in two.
    group=$((4 * linears * 128))
    [ "$(value default_flops)" -gt $(($(value fast_flops) + 16 * group)) ]
    [ "$(value best_flops)" -gt $((2 * $(value fast_flops) + 96 * group)) ]
    # Targets: W less damping times W (H + damping)^-1, two triangles, 4 O C^2.
    [ "$(value target_flops)" -eq $((4 * 4 * pairs)) ]
    more=$(($(value default_flops --group 32) - $(value default_flops --group 128)))
    [ "$more" -eq $((-4 * linears * 96 * 16)) ]
}

@test "the size of the result, within 2 %" {
    forge-weights -q "$model" | forge-grid -q | forge-solve -q |
        forge-pack -q | forge-shard -q --from "$model" out
    is=$(stat -c %s out/model.safetensors) said=$(value bytes_out)
    [ $((is * 98)) -lt $((said * 100)) ]
    [ $((is * 102)) -gt $((said * 100)) ]
    [ "$(value bytes_out --group 32)" -gt "$said" ]
}

@test "a linear of another shape is refused" {
    cp -r "$model" other
    chmod -R u+w other
    sed -i 's/"intermediate_size": 768/"intermediate_size": 512/' \
        other/config.json
    run -65 --separate-stderr forge-plan other
    [[ $stderr == *"mlp.gate_proj.weight' is not 512 x 256"* ]]
}

@test "a wrong command line, a missing model, a full disk" {
    run -64 forge-plan
    run -64 forge-plan --group 0 "$model"
    run -64 forge-plan "$model" more
    run -66 forge-plan nowhere
    [ -e /dev/full ] || skip "no /dev/full"
    run -74 bash -c 'forge-plan "$1" >/dev/full' - "$model"
}

# Completion of forge and its tools for bash, and for zsh after
# `autoload -U +X bashcompinit && bashcompinit`: each program says its own
# options and their values (--complete, a line "--name VALUE" each).
_forge() {
    local command=("${COMP_WORDS[0]}") word=${COMP_WORDS[COMP_CWORD]} before
    local line values=
    before=${COMP_WORDS[COMP_CWORD - 1]}
    # --option=VALUE comes as three words
    if [ "$word" = = ]; then
        word=
    elif [ "$before" = = ] && [ "$COMP_CWORD" -gt 2 ]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    COMPREPLY=()
    if [ "${command[0]##*/}" = forge ]; then
        if [ "$COMP_CWORD" -eq 1 ]; then
            mapfile -t COMPREPLY < <(compgen -W "$("${command[0]}" --complete \
                2>/dev/null)" -- "$word")
            return
        fi
        command+=("${COMP_WORDS[1]}")
    fi
    while IFS= read -r line; do
        if [ "${line%% *}" = "$before" ] && [ "$line" != "$before" ]; then
            values=${line#* }
        fi
    done < <("${command[@]}" --complete 2>/dev/null)
    if [[ $values == *'|'* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "${values//|/ }" -- "$word")
    elif [[ -z $values && $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("${command[@]}" --complete \
            2>/dev/null | sed 's/ .*//')" -- "$word")
    fi
}
# Where the option tables have nothing to say, names of files.
complete -o default -F _forge forge forge-text forge-tokens forge-calib forge-hooks \
    forge-gradient forge-hessian forge-weights forge-bits forge-grid forge-solve forge-tune forge-split \
    forge-pack forge-shard forge-prune forge-eval forge-report forge-ls forge-plan \
    forge-meter forge-device forge-generate forge-gguf forge-verify

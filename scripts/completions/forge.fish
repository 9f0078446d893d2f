# Completion of forge for fish: each command says its own options (--complete).
function __forge_options
    set -l words (commandline -opc)
    if test (count $words) -lt 2
        forge --complete 2>/dev/null
    else
        forge $words[2] --complete 2>/dev/null | string replace -r ' ' \t
    end
end
complete -c forge -a '(__forge_options)'

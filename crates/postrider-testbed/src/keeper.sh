# Keeps one PostgreSQL cluster: does what it reads, line by line, and answers each line with one of its own. When there
# is nothing more to read, it ends the cluster and removes its folder.
#
# A test process that is killed cannot tidy up, but its end of the pipe is closed however it ends. That the server is
# started here and nowhere else means that it cannot be started once the pipe is closed.
#
#   $1  the folder of PostgreSQL's programs
#   $2  where to make a folder

# Whoever reads the answers may be gone while one is written; that must not be the end of this shell.
trap '' PIPE HUP INT TERM

programs=$1
folder=$(mktemp -d "$2/postrider-testbed.XXXXXX") || exit 1
log=$folder/log
data=$folder/data

answer() {
    if "$@" </dev/null >>"$log" 2>&1; then echo done; else echo failed; fi
}

# Into a file of the cluster's own; a line feed in the text is written as \n.
put() {
    printf '%b\n' "${2#* }" >"$data/${2%% *}.new" && chmod 600 "$data/${2%% *}.new" || return
    case $1 in
    write) mv "$data/${2%% *}.new" "$data/${2%% *}" ;;
    append) cat "$data/${2%% *}.new" >>"$data/${2%% *}" && rm "$data/${2%% *}.new" ;;
    esac
}

echo "$folder"
while read -r order argument; do
    case $order in
    create)
        # The server itself keeps fsync on; files that it has not yet been started with need none.
        answer "$programs/initdb" -D "$data" -U postgres -A trust -E UTF8 --no-locale --no-sync
        ;;
    copy)
        # Its first word is the port of the primary, the second its own name there, the rest the program.
        rest=${argument#* }
        answer "${rest#* }" -D "$data" -R -X stream -c fast --no-sync \
            -d "host=127.0.0.1 port=${argument%% *} user=postgres application_name=${rest%% *}"
        ;;
    write | append)
        answer put "$order" "$argument"
        ;;
    promote)
        answer "$programs/pg_ctl" promote -w -t 120 -D "$data"
        ;;
    start)
        answer "$programs/pg_ctl" start -w -t 120 -D "$data" -l "$log" \
            -o "-p $argument -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=200"
        ;;
    stop)
        answer "$programs/pg_ctl" stop -w -t 120 -D "$data" -m "$argument"
        ;;
    *)
        echo failed
        ;;
    esac
done

"$programs/pg_ctl" stop -w -D "$data" -m immediate </dev/null >/dev/null 2>&1
rm -rf "$folder"

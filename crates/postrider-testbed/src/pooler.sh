# Keeps one PgBouncer: starts it with the settings that it reads, and ends it when there is nothing more to read. See
# keeper.sh for why a shell does this.
#
#   $1  PgBouncer
#   $2  where to make a folder
trap '' PIPE HUP INT TERM

folder=$(mktemp -d "$2/postrider-pooler.XXXXXX") || exit 1
process=

end() {
    [ -z "$process" ] || { kill -KILL "$process" && wait "$process"; } 2>/dev/null
}

echo "$folder"
while read -r order argument; do
    case $order in
    start)
        end
        printf '%b\n' "$argument" >"$folder/settings"
        "$1" "$folder/settings" </dev/null >>"$folder/log" 2>&1 &
        process=$!
        echo done
        ;;
    alive)
        if kill -0 "$process" 2>/dev/null; then echo done; else echo failed; fi
        ;;
    *)
        echo failed
        ;;
    esac
done

end
rm -rf "$folder"

#!/bin/sh
# Starts and stops simulated engines on this machine for `extproc autoscale --exec`: one engine and one agent an instance.
# Yours would call what starts your machines, containers or jobs, and end as soon as that has taken the order.
set -eu
directory=${ENGINES:-/tmp/extproc-engines}
mkdir -p "$directory"
me=$directory/$EXTPROC_INSTANCE

case $EXTPROC_ACTION in
start)
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  # setsid: they outlive this call. Their output goes elsewhere, else it would be ours, and we that of the autoscaler.
  setsid extproc engine --port "$port" --model "$EXTPROC_MODELS" --hardware "$EXTPROC_HARDWARE" \
    --load-delay-s "${LOAD_DELAY_S:-20}" >"$me.engine.log" 2>&1 &
  echo $! >"$me.pids"
  setsid extproc agent --id "$EXTPROC_INSTANCE" --backend "http://127.0.0.1:$port" --hardware "$EXTPROC_HARDWARE" \
    --model "$EXTPROC_MODELS" --no-drain-on-stop >"$me.agent.log" 2>&1 &
  echo $! >>"$me.pids"
  ;;
stop)
  [ -e "$me.pids" ] || exit 0 # stopped already: an order may come twice
  xargs kill <"$me.pids" || true
  rm "$me.pids"
  ;;
esac

# Before Envoy is told to end: has clients go elsewhere, and waits until what runs has ended, $1 seconds at the most.
ask() {
  exec 3<>"/dev/tcp/127.0.0.1/${ADMIN_PORT:-9901}" || exit 0
  printf '%s HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n' "$1" >&3
  cat <&3
}
ask 'POST /healthcheck/fail' >/dev/null # answers end with `connection: close` from here on
until=$((SECONDS + $1))
sleep 2 # until the Service has left this pod out
while [ "$SECONDS" -lt "$until" ]; do
  ask 'GET /stats?filter=^http.llm.downstream_rq_active$' | grep -q 'active: 0' && exit 0
  sleep 1
done

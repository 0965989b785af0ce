# Whether this Envoy takes requests: status 0 or 1. Its image has bash and no curl.
exec 3<>"/dev/tcp/127.0.0.1/${ADMIN_PORT:-9901}" || exit 1
printf 'GET /ready HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n' >&3
read -r _ status _ <&3
[ "$status" = 200 ]

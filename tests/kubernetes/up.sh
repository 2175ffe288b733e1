#!/bin/bash
# up.sh FOLDER NODES [COMMAND…]: run the Kubernetes that build.sh has put into FOLDER, with as many
# nodes, each a network namespace with its kubelet, containerd and sshd, until the command ends, or
# this. FOLDER/enter COMMAND… runs a command beside its API server; FOLDER/run/ssh.yaml is the
# inventory of the nodes. All of it is in one process namespace and ends with that.
set -eu
here=$(realpath "$(dirname "$0")")
folder=$(realpath "$1")
nodes=$2

if [ -z "${INSIDE:-}" ]; then
    rm -rf "$folder/run"
    mkdir -p "$folder/run"
    INSIDE=1 unshare --pid --mount --net --fork --kill-child --mount-proc "$here/up.sh" "$folder" "$nodes" &
    outer=$!
    tidy() {
        kill -KILL "$outer" 2>/dev/null || true
        wait "$outer" 2>/dev/null || true
        find /sys/fs/cgroup -depth -type d '(' -name k8s.io -o -path '*/k8s.io/*' ')' -exec rmdir {} + 2>/dev/null || true
        rm -rf "$folder/run"
    }
    trap tidy EXIT
    trap exit INT TERM
    until init=$(cat "/proc/$outer/task/$outer/children" 2>/dev/null) && [ -n "$init" ]; do
        kill -0 "$outer"
        sleep 0.1
    done
    cat >"$folder/enter" <<END
#!/bin/sh
KUBECONFIG=\${KUBECONFIG:-$folder/run/admin.conf} exec nsenter --net=/proc/${init% }/ns/net "\$@"
END
    chmod +x "$folder/enter"
    until [ -e "$folder/run/ready" ]; do
        kill -0 "$outer"
        sleep 0.2
    done
    echo "Kubernetes 1.20 with $nodes nodes: $folder/enter COMMAND, with KUBECONFIG=$folder/run/bench.conf for a user with few rights"
    shift 2
    if [ $# -gt 0 ]; then "$@"; else wait "$outer"; fi
    exit
fi

cd "$folder/run"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
api=https://10.99.0.1:6443

# A certificate for everybody who needs one: the servers, their clients, the user who may do all.
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 30 -subj /CN=orch 2>/dev/null
openssl req -newkey rsa:2048 -nodes -keyout all.key -out all.csr -subj /O=system:masters/CN=admin 2>/dev/null
printf 'subjectAltName=IP:10.99.0.1,IP:10.96.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' >all.ext
openssl x509 -req -in all.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out all.crt -days 30 -extfile all.ext 2>/dev/null
openssl genrsa -out accounts.key 2048 2>/dev/null
token=$(openssl rand -hex 16)
echo "$token,bench,bench" >tokens.csv
kubeconfig() {  # FILE CREDENTIALS
    cat >"$1" <<END
{"apiVersion": "v1", "kind": "Config", "current-context": "orch",
 "clusters": [{"name": "orch", "cluster": {"server": "$api", "certificate-authority": "$PWD/ca.crt"}}],
 "users": [{"name": "user", "user": {$2}}],
 "contexts": [{"name": "orch", "context": {"cluster": "orch", "user": "user", "namespace": "bench"}}]}
END
    chmod 600 "$1"
}
kubeconfig admin.conf "\"client-certificate\": \"$PWD/all.crt\", \"client-key\": \"$PWD/all.key\""
kubeconfig bench.conf "\"token\": \"$token\""

serve() {  # NAME COMMAND…: in the background, with its log
    local name=$1
    shift
    "$@" >"$name.log" 2>&1 &
}

# The names of namespaces must not meet those of this machine.
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip link set lo up
ip link add br0 type bridge
ip address add 10.99.0.1/24 dev br0
ip link set br0 up

serve etcd etcd --data-dir etcd --listen-client-urls http://127.0.0.1:12379 --advertise-client-urls http://127.0.0.1:12379 \
    --listen-peer-urls http://127.0.0.1:12380 --initial-advertise-peer-urls http://127.0.0.1:12380 \
    --initial-cluster default=http://127.0.0.1:12380 --unsafe-no-fsync
serve apiserver "$folder/kube-apiserver" --etcd-servers http://127.0.0.1:12379 --bind-address 10.99.0.1 --advertise-address 10.99.0.1 \
    --tls-cert-file all.crt --tls-private-key-file all.key --client-ca-file ca.crt --token-auth-file tokens.csv \
    --service-account-key-file accounts.key --service-account-signing-key-file accounts.key \
    --service-account-issuer https://kubernetes.default --service-cluster-ip-range 10.96.0.0/16 \
    --authorization-mode RBAC --disable-admission-plugins ServiceAccount --endpoint-reconciler-type none \
    --kubelet-client-certificate all.crt --kubelet-client-key all.key --kubelet-preferred-address-types InternalIP
get() { curl --silent --cacert ca.crt --cert all.crt --key all.key "$api$1"; }
post() { curl --silent --output /dev/null --show-error --fail-with-body --cacert ca.crt --cert all.crt --key all.key -H 'Content-Type: application/json' --data "$2" "$api$1"; }
until get /readyz | grep -q '^ok'; do sleep 0.5; done
serve scheduler "$folder/kube-scheduler" --kubeconfig admin.conf --leader-elect=false --port 0 --secure-port 0
serve controllers "$folder/kube-controller-manager" --kubeconfig admin.conf --leader-elect=false --port 0 --secure-port 0 \
    --service-account-private-key-file accounts.key --node-monitor-grace-period 120s

# What docs/kubernetes.md asks for, and nothing else, for the user with a token.
rbac=/apis/rbac.authorization.k8s.io/v1/namespaces/bench
post /api/v1/namespaces '{"metadata": {"name": "bench"}}'
post $rbac/roles '{"metadata": {"name": "orch"}, "rules": [
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "delete"]}]}'
post $rbac/rolebindings '{"metadata": {"name": "orch"}, "subjects": [{"kind": "User", "name": "bench"}],
    "roleRef": {"kind": "Role", "name": "orch", "apiGroup": "rbac.authorization.k8s.io"}}'

# Indexes of jobs are newer than 1.20: an admission webhook gives them.
serve indexes python3 "$here/indexes.py" all.crt all.key ca.crt "$api" 8443
post /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations '{"metadata": {"name": "indexes"}, "webhooks": [
    {"name": "indexes.orch.test", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
     "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
     "clientConfig": {"url": "https://10.99.0.1:8443/", "caBundle": "'"$(base64 -w0 ca.crt)"'"}}]}'

ssh-keygen -q -t ed25519 -N "" -f login
cat >ssh.yaml <<END
schema: 1
defaults:
  gpus: 0
  ssh: {user: root, key: $PWD/login, known_hosts: $PWD/known_hosts, config: /dev/null}
  vars: {interface: eth0, python: /usr/bin/python3, runner_python: /usr/bin/python3}
hosts:
END

[ -e "$folder/node.tar" ] || python3 "$here/image.py" localhost/orch/node:1 "$folder/node.tar"
for node in $(seq "$nodes"); do
    mkdir -p "node$node/cni"
    ip netns add "node$node"
    ip link add "node$node" type veth peer name eth0 netns "node$node"
    ip link set "node$node" master br0 up
    inside=(nsenter "--net=/run/netns/node$node")
    "${inside[@]}" ip link set lo up
    "${inside[@]}" ip link set eth0 up
    "${inside[@]}" ip address add "10.99.0.$((node + 10))/24" dev eth0
    "${inside[@]}" sysctl -qw net.ipv4.ip_forward=1
    for other in $(seq "$nodes"); do
        [ "$other" = "$node" ] || "${inside[@]}" ip route add "10.88.$other.0/24" via "10.99.0.$((other + 10))"
    done
    cat >"node$node/cni/10-orch.conflist" <<END
{"cniVersion": "0.4.0", "name": "node$node", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true,
 "ipam": {"type": "host-local", "dataDir": "$PWD/node$node/addresses", "routes": [{"dst": "0.0.0.0/0"}],
          "ranges": [[{"subnet": "10.88.$node.0/24"}]]}}]}
END
    cat >"node$node/containerd.toml" <<END
version = 2
root = "$PWD/node$node/root"
state = "$PWD/node$node/state"
[grpc]
  address = "$PWD/node$node/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true  # without it, runc ends where this process may not lower its own
  sandbox_image = "localhost/orch/node:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$PWD/node$node/cni"
END
    serve "containerd$node" "${inside[@]}" containerd --config "node$node/containerd.toml"
    # "ip netns exec" would hide the control groups behind a new /sys.
    until ctr --address "node$node/containerd.sock" --namespace k8s.io images import "$folder/node.tar" >/dev/null 2>&1; do sleep 0.5; done
    serve "kubelet$node" "${inside[@]}" "$folder/kubelet" --kubeconfig admin.conf --hostname-override "node$node" \
        --root-dir "$PWD/node$node/kubelet" --cert-dir "$PWD/node$node/certificates" --client-ca-file ca.crt \
        --address "10.99.0.$((node + 10))" --node-ip "10.99.0.$((node + 10))" --read-only-port 0 --healthz-port 0 \
        --container-runtime remote --container-runtime-endpoint "unix://$PWD/node$node/containerd.sock" \
        --cgroup-driver cgroupfs --cgroups-per-qos=false --enforce-node-allocatable= --eviction-hard= \
        --fail-swap-on=false --make-iptables-util-chains=false --authorization-mode AlwaysAllow

    ssh-keygen -q -t ed25519 -N "" -f "node$node/host_key"
    echo "10.99.0.$((node + 10)) $(cut -d' ' -f1,2 "node$node/host_key.pub")" >>known_hosts
    echo "  node$node: {address: 10.99.0.$((node + 10))}" >>ssh.yaml
    # Its processes, home and /run are its own, as those of a pod are; the rest is this machine's.
    serve "sshd$node" "${inside[@]}" unshare --pid --fork --kill-child --mount-proc --uts sh -ec '
        hostname "$1"
        mount -t tmpfs tmpfs /run
        mkdir -m 755 /run/sshd
        mount -t tmpfs -o mode=700 tmpfs /root
        exec /usr/sbin/sshd -D -e -f /dev/null -h "$PWD/$1/host_key" -o AuthorizedKeysFile="$PWD/login.pub" \
            -o StrictModes=no -o UsePAM=no -o PasswordAuthentication=no -o PidFile=none -o "Subsystem=sftp internal-sftp"
    ' sh "node$node"
done
until [ "$(get /api/v1/nodes | grep -c "kubelet is posting ready status")" = "$nodes" ]; do sleep 0.5; done
touch ready
sleep infinity

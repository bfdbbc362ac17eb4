#!/usr/bin/env bash
# A real Slurm cluster with accounting on this machine: four nodes of 4 CPUs, 4000 MB and 4 stand-in GPUs.
#
#   cluster.sh up FOLDER     starts it, everything it writes below FOLDER; then: . FOLDER/env
#   cluster.sh down FOLDER   stops it
#
# Lines in $SLURM_EXTRA are added to its configuration, and $SLURM_LUA becomes its job_submit.lua. If those lines have
# accounting_storage/none, there is no database.
#
# Needs root and Debian's packages slurm-wlm slurmdbd munge mariadb-server. Its ports, sockets and files are
# its own: a Slurm or a database that runs on this machine already is not touched. Job ids differ by cluster,
# since clusters on one machine share its cgroups, and whoever ends job 7 of node n1 ends all of that name.
set -euo pipefail
verb=${1:?up or down} folder=$(realpath -m "${2:?a folder}")
export PATH=$PATH:/usr/sbin SLURM_CONF=$folder/slurm.conf
socket=$folder/db.sock munge=$folder/munge.sock accounting=true
[[ ${SLURM_EXTRA:-} != *accounting_storage/none* ]] || accounting=false

left() { # jobs of this cluster and their step daemons, which outlive the daemons
  local of
  for of in $(grep -lzx "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ 2>/dev/null); do
    of=${of%/environ}
    { [ "$(cat "$of/comm")" = slurmstepd ] || grep -qz "^SLURM_JOB_ID=" "$of/environ"; } 2>/dev/null && echo "${of#/proc/}"
  done
  return 0
}

down() {
  local pid
  for pid in "$folder"/pid/*; do
    [ -s "$pid" ] && kill "$(cat "$pid")" 2>/dev/null
  done
  for _ in $(seq 100); do # slurmctld saves its state before it ends
    pgrep -F "$folder/pid/slurmctld" >/dev/null 2>&1 || break
    sleep 0.1
  done
  for pid in $(left); do
    kill -KILL "$pid" 2>/dev/null
  done
  return 0
}

wait_for() { # SECONDS COMMAND...: until it succeeds
  local until=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$until" ] || { echo "cluster.sh: gave up on: $*; see $folder/log" >&2; tail -n 5 "$folder"/log/* >&2; exit 1; }
    sleep 0.1
  done
}

keep_database() { # until it is told to end: MariaDB 10.11 has crashed on a query of accounting's
  until setsid -w mariadbd --no-defaults --user=root --datadir="$folder/db" --socket="$socket" \
    --pid-file="$folder/pid/db" --skip-networking --skip-grant-tables --innodb-buffer-pool-size=64M; do
    [ -d "$folder/db" ] || break
    sleep 0.5
  done >>"$folder/log/db" 2>&1
}

all_idle() { [ "$(sinfo -h -t idle -o %D)" = 4 ]; }

free_ports() { # the first of 110 ports none of which anybody listens on that the cluster needs
  local base port
  for base in $(seq 16800 200 30000); do
    for port in 0 1 101 102 103 104; do
      (exec 3<>"/dev/tcp/127.0.0.1/$((base + port))") 2>/dev/null && continue 2
    done
    echo "$base"; return
  done
}

configure() {
  local host memory_cgroup=false base
  base=$(free_ports)
  host=$(hostname -s)
  [ -d /sys/fs/cgroup/memory ] && memory_cgroup=true # version 1: version 2 wants systemd's bus
  cat >"$folder/slurmdbd.conf" <<X
AuthType=auth/munge
AuthInfo=socket=$munge
DbdHost=localhost
DbdPort=$((base + 1))
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
LogFile=$folder/log/slurmdbd.log
PidFile=$folder/pid/slurmdbd
X
  chmod 600 "$folder/slurmdbd.conf"
  cat >"$folder/slurm.conf" <<X
ClusterName=assay
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$base
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$munge,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmdPidFile=$folder/pid/slurmd.%n
SlurmctldPidFile=$folder/pid/slurmctld
SlurmdLogFile=$folder/log/slurmd.%n
SlurmctldLogFile=$folder/log/slurmctld
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=500
ReturnToService=0
KillWait=3
UnkillableStepTimeout=600 # a step daemon whose parent crashed may take a minute to give up on it, which drains its node
FirstJobId=$((base * 100)) # the control groups of two clusters on this machine differ by the job's number alone
SlurmdTimeout=15
SlurmdParameters=config_overrides # nodes have the CPUs below, however many this machine has
MaxJobCount=200000
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort=$((base + 1))
AccountingStoragePass=$munge
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
GresTypes=gpu
MpiDefault=none
NodeName=n[1-4] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((base + 101))-$((base + 104))] CPUs=4 RealMemory=4000 Gres=gpu:4 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
${SLURM_EXTRA:-}
X
  if $memory_cgroup; then
    printf 'ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\n' >>"$folder/slurm.conf"
  else
    printf 'ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n' >>"$folder/slurm.conf"
  fi
  $accounting || sed -i '/^AccountingStorage.*\(slurmdbd\|Host\|Port\|Pass\)/d' "$folder/slurm.conf"
  [ -z "${SLURM_LUA:-}" ] || printf '%s\n' "$SLURM_LUA" >"$folder/job_submit.lua"
  printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\nConstrainRAMSpace=yes\nConstrainSwapSpace=no\nConstrainCores=no\nConstrainDevices=no\n' >"$folder/cgroup.conf"
  echo 'NodeName=n[1-4] Name=gpu File=/dev/tty[0-3]' >"$folder/gres.conf"
  printf 'export SLURM_CONF=%q PATH=$PATH:/usr/sbin\n' "$SLURM_CONF" >"$folder/env"
}

up() {
  mkdir -p "$folder"/{pid,log,state,db}
  chmod 755 "$folder" && chmod 700 "$folder/state"
  configure
  [ -s "$folder/munge.key" ] || head -c 1024 /dev/urandom >"$folder/munge.key"
  chmod 400 "$folder/munge.key"
  munged --force --key-file="$folder/munge.key" --socket="$munge" --pid-file="$folder/pid/munged" \
    --log-file="$folder/log/munged" --seed-file="$folder/munge.seed" 2>>"$folder/log/munged.start"
  ! $accounting || keep_accounts
  slurmctld
  for node in n1 n2 n3 n4; do slurmd -N $node; done
  wait_for 600 all_idle
}

keep_accounts() {
  [ -d "$folder/db/mysql" ] || mariadb-install-db --user=root --datadir="$folder/db" --skip-test-db >"$folder/log/db.install" 2>&1
  keep_database &
  wait_for 600 mysqladmin --no-defaults --socket="$socket" ping
  mysql --no-defaults --socket="$socket" -e "create database if not exists slurm_acct_db"
  MYSQL_UNIX_PORT=$socket slurmdbd
  wait_for 600 sacctmgr -n show cluster
}

case $verb in
  up) down; up ;;
  down) down ;;
  *) echo "cluster.sh: up or down, not $verb" >&2; exit 2 ;;
esac

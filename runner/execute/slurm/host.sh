# What a batch script does around srun, on the host: a run's container may lack Slurm's commands, and a setup
# line may take them off PATH. The script sets assay_jobs (a folder), assay_requeue (`yes` or nothing), assay_name (of
# the array) and assay_limit (how many of its jobs may run at once, if fewer than it has).

assay_path=$PATH assay_script=$0
assay_own=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}
assay_own=${assay_own:-$SLURM_JOB_ID}
export ASSAY_AFTER=${1-} ASSAY_REQUEUE=$assay_requeue  # the job that this one goes on for; whether it may start again

# Says which line of the script has failed, and ends the job.
assay_failed() {
    echo "slurm.setup: '$(sed -n "${2}p" "$assay_script")' ended with exit code $1" >&2
    exit "$1"
}

# Adds a line about every run that goes on to its ledger: those that the runs have prepared for this event, and takes
# back the claims that they made if they are released: a folder that is left would stand for a claim. Only a file that
# nobody else can have written is believed, and no link is followed: others may have put another folder in
# the place of this one, and what is added to a shell's start file would run.
assay_tell() {
    local event ledger line
    while IFS=$'\t' read -r event ledger line; do
        [[ $event == "$2" && ! -L $ledger ]] || continue
        printf '%s\n' "${line//@JOB@/${3-}}" >>"$ledger"
        [[ $event != released ]] || (cd "${ledger%/*}" && [[ $line =~ \"attempt\":([0-9]+) ]] &&
            rm -f "attempt-${BASH_REMATCH[1]}/claim.json" && rmdir "attempt-${BASH_REMATCH[1]}")
    done < <(exec 9<"$1" && [[ $(stat -Lc '%u %a' /dev/fd/9) =~ ^$EUID\ [0-7]?[0-7][0145][0145]$ ]] && cat <&9)
}

# Submits this script anew, to start after this job. Where fewer jobs of an array may run at once than it has, the new
# one also waits for the whole array, and for new ones before it that take turns with it: they have one name.
assay_submit() {
    local after="afterany:$assay_own" index=${SLURM_ARRAY_TASK_ID-} job called=$assay_name name
    if [[ $index && $assay_limit ]]; then
        after="$after,afterany:$SLURM_ARRAY_JOB_ID,singleton" called=$assay_name.$((index % assay_limit))
    fi
    job=$(
        for name in "${!SLURM_@}" "${!SBATCH_@}" "${!SRUN_@}"; do  # the new job would take this one's options
            [[ $name == SLURM_CONF* || $name == SLURM_JWT ]] || unset "$name"
        done
        sbatch --parsable --job-name="$called" --dependency="$after" ${index:+--array="$index"} \
            "$assay_script" "$assay_own" | sed -nE 's/^([0-9]+)(;.*)?$/\1/p' | tail -n 1
    )
    # An sbatch that had no answer may have submitted it.
    [[ $job ]] || job=$(squeue -h -u "$EUID" -o '%A %E' | grep -F "afterany:$assay_own(" | sed 's/ .*//' | tail -n 1)
    [[ $job ]] && echo "$job${index:+_$index}"
}

# Prints the job in which this one goes on: itself, requeued, which Slurm may also do after a node failure, or a new one.
assay_next() {
    local state
    if [[ $assay_requeue ]]; then
        scontrol requeue "$assay_own" >&2 || { state=$(squeue -h -j "$assay_own" -o %T) && [[ $state && $state != RUNNING ]]; } &&
            echo "$assay_own" && return
    fi
    assay_submit
}

# Goes on in a next job if a run has asked for that; once for each start of this one.
assay_go_on() {
    local asked=$assay_jobs/${SLURM_JOB_ID}_next.${SLURM_RESTART_COUNT:-0} taken job PATH=$assay_path
    taken=${asked/_next./_requeued.}
    [[ ! -e $taken ]] && mv "$asked" "$taken" 2>/dev/null || return 0
    until job=$(assay_next); do  # the queue may be full, or the controller busy
        ((${SLURM_JOB_END_TIME:-0} - $(date +%s) > 30)) || break
        sleep 20
    done
    if [[ ! $job ]]; then
        assay_tell "$taken" released
    elif [[ $job != "$assay_own" ]]; then
        assay_tell "$taken" submitted "$job"
    fi
}

# Older versions of Slurm do not set the end of a job's time.
if [[ ! ${SLURM_JOB_END_TIME-} ]]; then
    while read -r assay_id assay_end; do
        if [[ $assay_id == "$SLURM_JOB_ID" ]] && assay_end=$(date -d "$assay_end" +%s 2>/dev/null); then
            export SLURM_JOB_END_TIME=$assay_end
        fi
    done < <(squeue -h -j "$SLURM_JOB_ID" -o '%A %e')
fi
if [[ ${SLURM_JOB_END_TIME-} ]]; then  # a run that hangs must not keep the others of its job from going on
    (sleep $((SLURM_JOB_END_TIME - $(date +%s) - 5)) && assay_go_on) &
fi
if [[ ${SLURM_RESTART_COUNT:-0} != 0 || $ASSAY_AFTER ]]; then
    assay_id=$assay_own
    [[ ${SLURM_RESTART_COUNT:-0} != 0 ]] || assay_id=$ASSAY_AFTER
    ASSAY_EARLIER=$(sacct -n -P -D -X -j "$assay_id" --name="$assay_name,$SLURM_JOB_NAME" -o State,ExitCode,NodeList)
    export ASSAY_EARLIER
fi

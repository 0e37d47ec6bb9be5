#!/bin/bash
#SBATCH -A <account>
#SBATCH -p <partition>
#SBATCH -t 01:00:00
#SBATCH -N 2
#SBATCH --ntasks-per-node=8
#SBATCH -o logs/trtllm-serve.out
#SBATCH -e logs/trtllm-serve.err
#SBATCH -J trtllm-serve

echo "Starting trtllm-serve..."
srun -l \
    --container-image=${CONTAINER_IMAGE} \
    --container-mounts=${MOUNT_DIR}:${MOUNT_DEST} \
    --container-workdir=${WORKDIR} \
    --export=ALL,PYTHONPATH=${SOURCE_ROOT} \
    --mpi=pmix \
    bash -c "
        set -ex
        $PROLOGUE
        export PATH=$PATH:~/.local/bin

        trtllm-llmapi-launch \
         trtllm-serve $LOCAL_MODEL \
            --tp_size 16 \
            --backend pytorch \
            --host 0.0.0.0 \
            ${ADDITIONAL_OPTIONS}
    "

package said
